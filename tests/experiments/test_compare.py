"""`remember compare`: every method and seed once, resumed where it stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remembering.baselines import LeftOut
from remembering.baselines.finetune import FineTuning
from remembering.cli import main
from remembering.config import RouterSettings, Settings
from remembering.errors import RememberingError
from remembering.experiments import compare as comparing
from remembering.experiments import methods as contestants
from remembering.experiments.compare import compare
from remembering.experiments.run import make_stream
from remembering.experiments.spec import Experiment, StreamSettings
from remembering.model import RememberingTransformer
from remembering.report.comparison import load_comparison, load_record
from remembering.report.page import write_report

EXPERIMENT = Experiment(
    description="Digits in two tasks.",
    stream=StreamSettings(tasks=2, per_class=8, test_per_class=5),
    learning=Settings(rank=1, epochs=1, batch_size=16, router=RouterSettings(epochs=2)),
)
TOML = """
description = "Digits in two tasks."
[stream]
tasks = 2
per_class = 8
test_per_class = 5
[learning]
epochs = 1
batch_size = 16
[learning.router]
epochs = 2
"""
TIMES = ("seconds", "seconds_learning", "images_per_second")


def outcome(path: Path) -> dict[str, Any]:
    """What must not depend on when and how often a run was stopped."""
    return {key: value for key, value in load_record(path).items() if key not in TIMES}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare")
    methods = ["ours", "ours-published", "finetune", "joint", "ncm"]
    compare("digits-2", EXPERIMENT, out, methods, [0, 1])
    return out


def test_one_record_a_method_and_seed(done: Path) -> None:
    assert len(list(done.glob("*/seed-[01].json"))) == 10
    assert not list(done.glob("*/*.task-*"))
    assert not list(done.glob("*/*.so-far.json"))
    record = load_record(done / "ncm" / "seed-1.json")
    assert record["seed"] == 1
    assert record["trained"] == 0
    assert record["kept"] == {"parameters": 10 * 96, "bytes": 10 * 96 * 4 + 10 * 8, "images": 0}
    assert (record["options"], record["given"], record["asked"]) == ({}, {}, ["digits-2"])
    assert load_record(done / "joint" / "seed-0.json")["kept"]["images"] == 80
    scores = record["units"]["sample"]
    assert scores["accuracy"] == scores["accuracy_after"][-1] == sum(scores["matrix"][-1]) / 2
    assert scores["average"] == sum(scores["accuracy_after"]) / 2
    assert scores["forgetting"] == scores["matrix"][0][0] - scores["matrix"][1][0]
    assert len(record["seconds_learning"]) == 2
    assert record["images_per_second"] > 0


def test_joint_training_is_asked_once_and_its_training_is_counted(done: Path) -> None:
    record = load_record(done / "joint" / "seed-0.json")
    scores = record["units"]["sample"]
    assert scores["accuracy_after"][0] is None
    assert scores["average"] is scores["forgetting"] is None
    assert record["seconds_learning"][1] > 10 * record["seconds_learning"][0]


def test_ours_has_a_row_for_each_unit(done: Path) -> None:
    titles = [row.title for row in load_comparison(done).rows]
    for title in ("Ours, as published (task)", "Ours, as published (sample)", "Ours, default"):
        assert titles.count(title) == 1
    accuracies = [row.score("accuracy") for row in load_comparison(done).rows]
    means = [value.mean for value in accuracies if value]
    assert means == sorted(means, reverse=True)
    assert len(means) == 6


def test_ours_as_published_and_by_default() -> None:
    given = Settings(rank=3, router=RouterSettings(kind="subspace", latent=2))
    published = contestants.as_published(given)
    assert (published.router.kind, published.router.latent) == ("autoencoder", 2)
    assert contestants.by_default(given).router == Settings().router
    assert published.rank == contestants.by_default(given).rank == 3


def test_eyes_are_trained_and_sums_have_eight_bytes(done: Path) -> None:
    record = load_record(done / "ours" / "seed-0.json")
    adapter, head, feature_adapter = 4 * 6 * 2 * 96, 5 * 97, 8 * 4 * 6 * 2 * 96
    assert record["trained"] == 2 * (adapter + head) + feature_adapter
    assert record["kept"]["bytes"] > 8 * (5 * 2 * 96) ** 2 > record["kept"]["parameters"] * 4


def test_options_of_the_experiment_and_of_the_command(tmp_path: Path) -> None:
    experiment = replace(EXPERIMENT, options=("ranpac.projection=50", "ewc.strength=7"))
    compare("digits-2", experiment, tmp_path / "a", ["ranpac_frozen", "ranpac"], [0])
    assert load_record(tmp_path / "a" / "ranpac" / "seed-0.json")["given"] == {"projection": 50}
    assert load_record(tmp_path / "a" / "ranpac_frozen" / "seed-0.json")["given"] == {}
    changed = {"ranpac": {"projection": 60.0}}
    compare("digits-2", experiment, tmp_path / "b", ["ranpac"], [0], options=changed)
    assert load_record(tmp_path / "b" / "ranpac" / "seed-0.json")["given"] == {"projection": 60}
    with pytest.raises(RememberingError, match="no finite number"):
        compare("x", replace(EXPERIMENT, options=("ewc.strength=x",)), tmp_path, ["ncm"], [0])


def test_what_is_done_is_not_done_again(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.glob("*/seed-*.json")}
    monkeypatch.setattr(comparing, "make_stream", None)  # would fail if anything were left
    compare("digits-2", EXPERIMENT, done, ["ncm", "finetune"], [0, 1])
    assert {path: path.stat().st_mtime_ns for path in done.glob("*/seed-*.json")} == before


@pytest.mark.parametrize(
    ("method", "learner"), [("finetune", FineTuning), ("ours", RememberingTransformer)]
)
def test_goes_on_after_the_last_finished_task(
    method: str, learner: Any, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, learned = learner.learn, []

    def stopped(self: Any, task: Any, *rest: Any) -> Any:
        if len(learned) == 1:
            learned.append("stopped")
            raise KeyboardInterrupt
        learned.append(task.name)
        return learn(self, task, *rest)

    monkeypatch.setattr(learner, "learn", stopped)
    with pytest.raises(KeyboardInterrupt):
        compare("digits-2", EXPERIMENT, tmp_path, [method], [0])
    assert not list(tmp_path.glob("*/seed-0.json"))
    compare("digits-2", EXPERIMENT, tmp_path, [method], [0])
    assert len(learned) == 3  # the first, the stop, the second
    path = Path(method) / "seed-0.json"
    assert outcome(tmp_path / path) == outcome(done / path)
    assert [p.name for p in (tmp_path / method).iterdir()] == ["seed-0.json"]


def test_a_damaged_state_counts_as_none(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "finetune"
    folder.mkdir()
    (folder / "seed-0.task-1").write_bytes(b"half")
    standing = {"matrices": {"sample": [[0.5, None]]}, "seconds": [1.0]}
    (folder / "seed-0.so-far.json").write_text(json.dumps(standing))
    (tmp_path / "compare.toml").write_bytes((done / "compare.toml").read_bytes())
    compare("digits-2", EXPERIMENT, tmp_path, ["finetune"], [0])
    path = Path("finetune") / "seed-0.json"
    assert outcome(tmp_path / path) == outcome(done / path)


def test_other_settings_and_other_folders_are_refused(done: Path, tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match="other settings"):
        compare("digits-2", Experiment(), done, ["ncm"], [0])
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RememberingError, match="holds no comparison"):
        compare("digits-2", EXPERIMENT, tmp_path, ["ncm"], [0])


def test_methods_with_a_memory_have_the_same_unless_told_otherwise(tmp_path: Path) -> None:
    """20 images for each class of each task; here there are only 8 to keep."""
    methods, other = ["icarl", "der", "mnemonics"], {"mnemonics": {"memory": 40.0, "epochs": 0.0}}
    compare("digits-2", EXPERIMENT, tmp_path, methods, [0], options=other)
    found = {name: load_record(tmp_path / name / "seed-0.json") for name in methods}
    allowed = {name: record["options"]["memory"] for name, record in found.items()}
    assert allowed == {"icarl": 200, "der": 200, "mnemonics": 40}
    kept = {name: record["kept"]["images"] for name, record in found.items()}
    assert kept == {"icarl": 80, "der": 80, "mnemonics": 40}
    assert found["mnemonics"]["given"] == other["mnemonics"]
    assert load_comparison(tmp_path).command.endswith(
        "--options mnemonics.memory=40 mnemonics.epochs=0 --seeds 0"
    )


def test_a_memory_grows_with_the_tasks() -> None:
    """In permuted digits, too, where all tasks have the same classes."""
    permuted = replace(EXPERIMENT, stream=replace(EXPERIMENT.stream, kind="permute", tasks=3))
    entry = contestants.CONTESTANTS["icarl"]
    assert entry.options({}, make_stream(permuted)) == {"memory": 600}


def test_what_only_began_does_not_bind(tmp_path: Path) -> None:
    """A first try that fails can be corrected in the same folder."""
    few = {"icarl": {"memory": 1.0}}
    with pytest.raises(RememberingError, match="no room for one of each class"):
        compare("digits-3", EXPERIMENT, tmp_path, ["icarl"], [0], options=few)
    assert (tmp_path / "compare.toml").is_file()
    compare("digits-2", EXPERIMENT, tmp_path, ["icarl"], [0])
    assert load_record(tmp_path / "icarl" / "seed-0.json")["options"]["memory"] == 200


def test_a_method_that_fails_can_be_given_other_options(tmp_path: Path) -> None:
    compare("digits-2", EXPERIMENT, tmp_path, ["ncm"], [0])
    few, enough = {"icarl": {"memory": 1.0}}, {"icarl": {"memory": 20.0}}
    with pytest.raises(RememberingError, match="no room for one of each class"):
        compare("digits-2", EXPERIMENT, tmp_path, ["icarl"], [0], options=few)
    compare("digits-2", EXPERIMENT, tmp_path, ["icarl"], [0], options=enough)
    assert load_record(tmp_path / "icarl" / "seed-0.json")["kept"]["images"] == 20


def test_one_bad_option_stops_all_before_they_begin(tmp_path: Path) -> None:
    bad = {"ewc": {"strength": -1.0}}
    with pytest.raises(RememberingError, match=r"ewc.strength = -1"):
        compare("digits-2", EXPERIMENT, tmp_path / "out", ["ncm", "ewc"], [0], options=bad)
    assert not (tmp_path / "out").exists()


def test_settings_that_change_nothing_are_not_other_settings(
    done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "Backbone", None)  # would fail if anything were left
    compare("digits-2", replace(EXPERIMENT, description="In other words."), done, ["ncm"], [0])
    learning = replace(EXPERIMENT.learning, epochs=2)
    with pytest.raises(
        RememberingError, match=r"other settings \(learning.epochs: see compare.toml"
    ):
        compare("digits-2", replace(EXPERIMENT, learning=learning), done, ["ncm"], [0])


def test_an_option_at_its_default_is_no_other_option(tmp_path: Path) -> None:
    compare("digits-2", EXPERIMENT, tmp_path, ["slda"], [0])
    usual = {"slda": dict(contestants.CONTESTANTS["slda"].defaults)}
    compare("digits-2", EXPERIMENT, tmp_path, ["slda"], [0, 1], options=usual)
    assert (tmp_path / "slda" / "seed-1.json").is_file()


@pytest.mark.parametrize(
    "text", ["options = 3", "[options]\nncm = 3", "[options.ncm]\nx = 'y'", "="]
)
def test_damaged_settings_are_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "compare.toml").write_text(text)
    with pytest.raises(RememberingError, match=r"compare\.toml is damaged"):
        compare("digits-2", EXPERIMENT, tmp_path, ["ncm"], [0])


def test_other_options_are_refused(tmp_path: Path) -> None:
    def ranpac(**options: float) -> None:
        compare("digits-2", EXPERIMENT, tmp_path, ["ranpac"], [0], options={"ranpac": options})

    ranpac(projection=100)
    compare("digits-2", EXPERIMENT, tmp_path, ["ncm"], [0])
    ranpac(projection=100)
    with pytest.raises(RememberingError, match="projection = 100, not its defaults"):
        ranpac()
    with pytest.raises(RememberingError, match="'ranpac' with other options"):
        ranpac(projection=101)


def test_a_method_left_out_keeps_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = LeftOut("SupSup", "Wortsman et al. (2020)", "it needs convolutions", "SupSup")
    monkeypatch.setattr(comparing, "LEFT_OUT", {"supsup": method})
    compare("cifar10-5", EXPERIMENT, tmp_path / "out", ["ncm"], [0])
    text = write_report([tmp_path / "out"], tmp_path / "page").read_text()
    assert "SupSup is left out: it needs convolutions" in text
    assert "26.2&nbsp;±&nbsp;0.46" in text


class TestCommand:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "two.toml"
        path.write_text(TOML)
        return path

    def test_prints_a_table_and_reports(
        self, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "out"
        words = ["compare", str(file), "--methods", "ncm,slda", "--seeds", "0,1", "--out", str(out)]
        assert main([*words, "--options", "slda.shrinkage=0.01"]) == 0
        shown = capsys.readouterr()
        assert "nearest class mean (SimpleCIL)" in shown.out
        assert "ncm, seed 0: " in shown.err
        assert "4 of 4" in shown.err
        assert load_comparison(out).command == (
            "remember compare PATH/two.toml --methods ncm,slda --options slda.shrinkage=0.01 "
            "--seeds 0,1"
        )
        assert main(["report", str(out), "--out", str(tmp_path / "page")]) == 0
        assert (tmp_path / "page" / "compare-two-bundled-cost.png").is_file()

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--methods", "ewx"], "did you mean 'ewc'"),
            (["--methods", "EWC"], "did you mean 'ewc'"),
            (["--data", "elsewhere"], "not read from elsewhere; leave out --data"),
            (["--image-size", "0"], "0"),
            (["--options", "ewc.strength=-5"], "ewc.strength = -5 must be a finite number, 0 or"),
            (["--methods", "nothing-like-it"], "known are ours"),
            (["--seeds", "a"], "not a list of whole numbers"),
            (["--seeds", ""], "--seeds is empty"),
            (["--small"], "has no [small] settings"),
            (["--options", "ewc=3"], "must be METHOD.OPTION=NUMBER"),
            (["--options", "ewx.strength=3"], "no method 'ewx'; did you mean 'ewc'"),
            (["--options", "ewc.strenght=3"], "'ewc' 'strenght'; did you mean 'strength'"),
            (["--options", "ewc.x=3"], "no option of 'ewc' 'x'; known are strength, images"),
            (["--options", "ours.rank=3"], "method 'ours' has no options"),
            (["--options", "ewc.strength=much"], "'much' is no finite number"),
            (["--options", "ewc.strength=nan"], "'nan' is no finite number"),
            (["--options", "ewc.images=1", "ewc.images=2"], "ewc.images twice"),
            (["--methods", "si", "--options", "ewc.images=1"], "not among the --methods"),
        ],
    )
    def test_mistakes(
        self, words: list[str], message: str, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """None of them leaves anything that a corrected command would stumble over."""
        out = file.parent / "out"
        assert main(["compare", str(file), "--out", str(out), *words]) == 1
        assert message in capsys.readouterr().err
        assert not out.exists()

    def test_lists_the_methods(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["compare", "--list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == list(contestants.CONTESTANTS)
        assert any(line.endswith("nearest class mean (SimpleCIL)") for line in lines)
