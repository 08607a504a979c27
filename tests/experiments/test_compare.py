"""The experiment loop over methods and seeds: each run once, resumed where it stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remembering.baselines.finetune import FineTuning
from remembering.config import RouterSettings, Settings
from remembering.errors import RememberingError
from remembering.experiments import compare as module
from remembering.experiments.compare import compare, run_experiment
from remembering.experiments.methods import METHODS
from remembering.experiments.result import RunResult, read_result
from remembering.experiments.spec import Experiment, StreamSettings
from remembering.experiments.stream import make_stream
from remembering.model import RememberingTransformer
from remembering.report.collect import collect
from remembering.report.comparison import Comparison

pytestmark = pytest.mark.integration

EXPERIMENT = Experiment(
    description="Digits in two tasks.",
    baselines=("ncm", "joint"),
    stream=StreamSettings(tasks=2, per_class=8, test_per_class=5),
    learning=Settings(rank=1, epochs=1, batch_size=16),
    published=Settings.paper(
        epochs=1, batch_size=16, router=RouterSettings(kind="autoencoder", epochs=2)
    ),
)


def load(folder: Path, method: str, seed: int = 0) -> RunResult:
    return read_result(folder / method / f"seed-{seed}" / "results.json")


def load_comparison(folder: Path) -> Comparison:
    (comparison,) = collect([folder])[1]
    return comparison


def without_times(result: RunResult) -> RunResult:
    """Return what must not depend on when and how often a run was interrupted."""
    return replace(result, seconds=0.0, seconds_learning=(0.0, 0.0), images_per_second=0.0)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare")
    methods = ["ours", "ours-published", "finetune", "joint", "ncm"]
    compare("digits-2", EXPERIMENT, out, methods, [0, 1])
    return out


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    run_experiment("digits-2", EXPERIMENT, out)
    return out


def test_one_result_per_method_and_seed(done: Path) -> None:
    assert len(list(done.glob("*/seed-[01]/results.json"))) == 10
    assert {path.name for path in done.glob("*/*/*")} == {"config.toml", "results.json"}
    result = load(done, "ncm", 1)
    assert (result.seed, result.config.method, result.config.experiment) == (1, "ncm", "digits-2")
    footprint = result.footprint
    assert (footprint.trained, footprint.replay_images) == (0, 0)
    assert (footprint.parameters, footprint.bytes) == (10 * 96, 10 * 96 * 4 + 10 * 8)
    assert (result.config.options, result.config.command) == ({}, ("compare", "digits-2"))
    assert load(done, "joint").footprint.replay_images == 80
    scores = result.units["sample"]
    assert scores.accuracy == scores.accuracy_after[-1] == sum(scores.matrix[-1]) / 2  # type: ignore[arg-type]
    assert len(result.seconds_learning) == 2
    assert result.images_per_second > 0
    assert len(result.data_sha256) == 64


def test_joint_training_is_evaluated_once_and_its_training_is_timed(done: Path) -> None:
    result = load(done, "joint")
    scores = result.units["sample"]
    assert scores.accuracy_after[0] is None
    assert scores.average is scores.forgetting is None
    assert result.seconds_learning[1] > 10 * result.seconds_learning[0]


def test_ours_has_a_row_for_each_unit(done: Path) -> None:
    rows = load_comparison(done).rows
    titles = [row.title for row in rows]
    for title in ("Ours, as published (task)", "Ours, as published (sample)", "Ours"):
        assert titles.count(title) == 1
    means = [row.accuracy.mean for row in rows]
    assert means == sorted(means, reverse=True)
    assert len(means) == 6


def test_routers_of_ours(done: Path) -> None:
    published, default = load(done, "ours-published").routing, load(done, "ours").routing
    assert published is not None
    assert default is not None
    assert published.router.score_name == "reconstruction error"
    assert (published.router.settings.kind, published.router.settings.epochs) == ("autoencoder", 2)
    assert default.router.score_name == "negative log-likelihood"
    assert (default.router.settings.kind, default.router.settings.layers) == ("gaussian", (1, 2))


def test_tasks_of_one_domain_share_an_adapter_and_the_published_ones_do_not(done: Path) -> None:
    adapter, head, autoencoder = 4 * 6 * 2 * 96, 5 * 97, 42
    ours, published = load(done, "ours"), load(done, "ours-published")
    assert [task.adapter for task in ours.tasks] == [0, 0]
    assert (ours.footprint.trained, ours.footprint.heads) == (adapter, 0)
    assert [task.adapter for task in published.tasks] == [0, 1]
    assert published.footprint.adapters == 2 * adapter
    assert published.footprint.trained == 2 * (adapter + head + autoencoder)


@pytest.mark.integration
def test_replay_and_the_first_adapter_are_variants_of_the_model(tmp_path: Path) -> None:
    memory = {"ours-replay": {"memory": 20.0}}
    compare("digits-2", EXPERIMENT, tmp_path, ["ours-replay", "ours-first"], [0], options=memory)
    replayed, first = load(tmp_path, "ours-replay"), load(tmp_path, "ours-first")
    assert replayed.footprint.replay_images == 20
    assert replayed.config.options == memory["ours-replay"]
    assert first.footprint.replay_images == 0
    assert [task.adapter for task in first.tasks] == [0, 0]


def test_options_of_the_experiment_and_of_the_call(tmp_path: Path) -> None:
    experiment = replace(EXPERIMENT, options=("ranpac.projection=50", "ewc.strength=7"))
    compare("digits-2", experiment, tmp_path / "a", ["ranpac_frozen", "ranpac"], [0])
    assert load(tmp_path / "a", "ranpac").config.options == {"projection": 50}
    assert load(tmp_path / "a", "ranpac_frozen").config.options == {}
    changed = {"ranpac": {"projection": 60.0}}
    compare("digits-2", experiment, tmp_path / "b", ["ranpac"], [0], options=changed)
    assert load(tmp_path / "b", "ranpac").config.options == {"projection": 60}
    with pytest.raises(RememberingError, match="not a finite number"):
        compare("x", replace(EXPERIMENT, options=("ewc.strength=x",)), tmp_path, ["ncm"], [0])


def test_finished_runs_are_not_repeated(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.rglob("*.json")}
    monkeypatch.setattr(module, "make_stream", None)  # fails if anything is left to run
    results = compare("digits-2", EXPERIMENT, done, ["ncm", "finetune"], [0, 1])
    assert [(r.config.method, r.seed) for r in results] == [
        ("ncm", 0),
        ("finetune", 0),
        ("ncm", 1),
        ("finetune", 1),
    ]
    assert {path: path.stat().st_mtime_ns for path in done.rglob("*.json")} == before


@pytest.mark.parametrize(
    ("method", "learner"), [("finetune", FineTuning), ("ours", RememberingTransformer)]
)
def test_an_interrupted_run_continues_after_the_last_task(
    method: str, learner: Any, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, learned = learner.learn, []

    def interrupted(self: Any, task: Any, **options: Any) -> Any:
        if len(learned) == 1:
            learned.append("interrupted")
            raise KeyboardInterrupt
        learned.append(task.name)
        return learn(self, task, **options)

    monkeypatch.setattr(learner, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare("digits-2", EXPERIMENT, tmp_path, [method], [0])
    assert not list(tmp_path.rglob("results.json"))
    compare("digits-2", EXPERIMENT, tmp_path, [method], [0])
    assert len(learned) == 3  # the first task, the interruption, the second task
    assert without_times(load(tmp_path, method)) == without_times(load(done, method))
    names = {path.name for path in (tmp_path / method / "seed-0").iterdir()}
    assert names == {"config.toml", "results.json"}


def test_a_kill_between_saving_and_scoring_does_not_repeat_the_task(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, killed = module.RunFolder.write_progress, []

    def fail(self: Any, progress: Any) -> None:
        if not killed:
            killed.append(progress)
            raise KeyboardInterrupt
        write(self, progress)

    monkeypatch.setattr(module.RunFolder, "write_progress", fail)
    with pytest.raises(KeyboardInterrupt):
        compare("digits-2", EXPERIMENT, tmp_path, ["ours"], [0])
    compare("digits-2", EXPERIMENT, tmp_path, ["ours"], [0])
    assert without_times(load(tmp_path, "ours")) == without_times(load(done, "ours"))


@pytest.mark.parametrize("state", [b"half", None])
def test_a_run_with_a_damaged_state_starts_again(
    state: bytes | None, done: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "finetune" / "seed-0"
    folder.mkdir(parents=True)
    if state:
        (folder / "state.safetensors").write_bytes(state)
    scores = [{"tasks": [{"accuracy": {"sample": 0.5}}]}]
    progress = {"scores": scores, "seconds_learning": [1.0], "seconds": 1.0}
    (folder / "scores.json").write_text(json.dumps(progress))
    config = done / "finetune" / "seed-0" / "config.toml"
    (folder / "config.toml").write_bytes(config.read_bytes())
    compare("digits-2", EXPERIMENT, tmp_path, ["finetune"], [0])
    assert without_times(load(tmp_path, "finetune")) == without_times(load(done, "finetune"))


def test_other_settings_and_other_folders_are_rejected(done: Path, tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match="other settings"):
        compare("digits-2", Experiment(), done, ["ncm"], [0])
    with pytest.raises(RememberingError, match=r"other settings \(experiment: see"):
        compare("digits-3", EXPERIMENT, done, ["slda"], [0])
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RememberingError, match="holds no comparison"):
        compare("digits-2", EXPERIMENT, tmp_path, ["ncm"], [0])


def test_all_replay_memories_have_the_same_size_unless_it_is_given(tmp_path: Path) -> None:
    """20 images per class of each task; here there are only 8 per class."""
    methods, other = ["icarl", "der", "mnemonics"], {"mnemonics": {"memory": 40.0, "epochs": 0.0}}
    compare("digits-2", EXPERIMENT, tmp_path, methods, [0], options=other)
    found = {name: load(tmp_path, name) for name in methods}
    sizes = {name: result.method.options["memory"] for name, result in found.items()}
    assert sizes == {"icarl": 200, "der": 200, "mnemonics": 40}
    images = {name: result.footprint.replay_images for name, result in found.items()}
    assert images == {"icarl": 80, "der": 80, "mnemonics": 40}
    assert found["mnemonics"].config.options == other["mnemonics"]
    assert load_comparison(tmp_path).command.endswith(
        "--options mnemonics.memory=40 mnemonics.epochs=0 --seeds 0"
    )


def test_the_replay_memory_grows_with_the_tasks() -> None:
    """Also for permuted digits, where all tasks have the same classes."""
    permuted = replace(EXPERIMENT, stream=replace(EXPERIMENT.stream, kind="permute", tasks=3))
    assert METHODS["icarl"].options({}, make_stream(permuted))["memory"] == 600


def test_a_run_that_failed_before_its_first_task_can_be_corrected(tmp_path: Path) -> None:
    few, enough = {"icarl": {"memory": 1.0}}, {"icarl": {"memory": 20.0}}
    with pytest.raises(RememberingError, match="memory of 1"):
        compare("digits-3", EXPERIMENT, tmp_path, ["icarl"], [0], options=few)
    assert (tmp_path / "icarl" / "seed-0" / "config.toml").is_file()
    compare("digits-2", EXPERIMENT, tmp_path, ["ncm"], [0])
    compare("digits-2", EXPERIMENT, tmp_path, ["icarl"], [0], options=enough)
    assert load(tmp_path, "icarl").footprint.replay_images == 20


def test_one_bad_option_stops_all_methods_before_they_start(tmp_path: Path) -> None:
    bad = {"ewc": {"strength": -1.0}}
    with pytest.raises(RememberingError, match=r"ewc.strength = -1"):
        compare("digits-2", EXPERIMENT, tmp_path / "out", ["ncm", "ewc"], [0], options=bad)
    assert not (tmp_path / "out").exists()


def test_settings_that_do_not_change_results_may_differ(
    done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Backbone", None)  # fails if anything is left to run
    other = replace(EXPERIMENT, description="In other words.", baselines=())
    compare("digits-2", other, done, ["ncm"], [0])
    learning = replace(EXPERIMENT.learning, epochs=2)
    with pytest.raises(RememberingError, match=r"other settings \(learning.epochs: see finetune"):
        compare("digits-2", replace(EXPERIMENT, learning=learning), done, ["ncm"], [0])


def test_an_option_at_its_default_is_not_another_option(tmp_path: Path) -> None:
    compare("digits-2", EXPERIMENT, tmp_path, ["slda"], [0])
    defaults = {"slda": dict(METHODS["slda"].defaults)}
    compare("digits-2", EXPERIMENT, tmp_path, ["slda"], [0, 1], options=defaults)
    assert load(tmp_path, "slda", 1).config.options == {}


@pytest.mark.parametrize("text", ["options = 3", "[options]\nx = 'y'", "="])
def test_damaged_settings_are_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ncm" / "seed-0" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(RememberingError, match=r"config\.toml"):
        compare("digits-2", EXPERIMENT, tmp_path, ["ncm"], [0])


def test_other_options_are_rejected(tmp_path: Path) -> None:
    def ranpac(**options: float) -> None:
        compare("digits-2", EXPERIMENT, tmp_path, ["ranpac"], [0], options={"ranpac": options})

    ranpac(projection=100)
    compare("digits-2", EXPERIMENT, tmp_path, ["ncm"], [0])
    ranpac(projection=100)
    with pytest.raises(RememberingError, match="projection = 100, not its defaults"):
        ranpac()
    with pytest.raises(RememberingError, match="'ranpac' with other options"):
        ranpac(projection=101)


def test_an_experiment_keeps_its_model_and_runs_its_baselines(ran: Path) -> None:
    assert {path.name for path in ran.iterdir()} == {
        "config.toml",
        "model",
        "results.json",
        "baselines",
    }
    assert {path.parent.name for path in ran.glob("baselines/*/results.json")} == {"ncm", "joint"}
    assert RememberingTransformer.load(ran / "model").learned == 2
    (group,), comparisons = collect([ran])
    assert (group.units, comparisons) == (("sample", "group_32", "group_128", "task"), [])
    assert [baseline.method for baseline in group.baselines] == ["joint", "ncm"]
    assert group.command == "remember run digits-2 --seeds 0"


def test_a_comparison_and_an_experiment_agree(done: Path, ran: Path) -> None:
    model, ours = read_result(ran / "results.json"), load(done, "ours")
    assert model.units["sample"] == ours.units["sample"]
    baseline = read_result(ran / "baselines" / "ncm" / "results.json")
    assert baseline.units == load(done, "ncm").units


def test_a_finished_experiment_is_resumed_only_with_the_same_settings(ran: Path) -> None:
    with pytest.raises(RememberingError, match="add --resume to continue it"):
        run_experiment("digits-2", EXPERIMENT, ran)
    results = run_experiment("digits-2", EXPERIMENT, ran, resume=True)
    assert [result.config.method for result in results] == ["model", "ncm", "joint"]
    for changes, name in (({"seed": 1}, "learning.seed"), ({"rank": 2}, "learning.rank")):
        other = replace(EXPERIMENT, learning=replace(EXPERIMENT.learning, **changes))
        with pytest.raises(RememberingError, match=rf"other settings \({name}: see config\.toml"):
            run_experiment("digits-2", other, ran, resume=True)


def test_baselines_can_be_added_to_an_experiment(ran: Path) -> None:
    more = replace(EXPERIMENT, baselines=("ncm", "joint", "slda"))
    *_, added = run_experiment("digits-2", more, ran, resume=True)
    assert added.config.method == "slda"
