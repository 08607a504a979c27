"""The selection of options on held-out training images, and its committed records."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from remembering.config import Settings
from remembering.errors import RememberingError
from remembering.experiments import search as module
from remembering.experiments.methods import METHODS, find_method, parse_options
from remembering.experiments.search import Search, SearchRecord, Trial, read_record, record_path
from remembering.experiments.spec import Experiment, StreamSettings, find
from remembering.experiments.stream import make_stream

ROOT = Path(__file__).parents[2]
EXPERIMENT = Experiment(
    stream=StreamSettings(tasks=2, sizes=(2, 2), per_class=8),
    learning=Settings(rank=1, epochs=1),
)


def trial(accuracy: float, images: int = 100, seed: int = 10, **options: float) -> Trial:
    return Trial("ewc", options, seed, images, 30, accuracy, 1.0, "", "")


def record(*trials: Trial) -> SearchRecord:
    return SearchRecord("x", False, EXPERIMENT, trials)


def test_the_best_options_have_the_best_mean_over_seeds() -> None:
    weak, strong = {"strength": 1.0}, {"strength": 9.0}
    trials = [trial(0.5, **weak), trial(0.9, **strong), trial(0.9, seed=11, **weak)]
    assert record(*trials, trial(0.4, seed=11, **strong)).best("ewc") == weak
    assert (
        record(*trials, trial(0.4, seed=11, **strong), trial(0.1, 200, **strong)).best("ewc")
        == strong
    ), "only trials with the most images count"
    assert record(trial(0.5, **weak), trial(0.5, **strong)).best("ewc") == weak
    with pytest.raises(KeyError):
        record().best("ewc")


def test_methods_that_share_a_training_have_the_same_options() -> None:
    tuned = [replace(trial(a, rank=r), method="joint-tuned") for a, r in ((0.9, 8.0), (0.8, 16.0))]
    gaussian = [replace(t, method="joint-gaussian", accuracy=1 - t.accuracy) for t in tuned]
    assert record(*tuned, *gaussian).best("joint-gaussian") == {"rank": 8}


def test_the_table_shows_means_over_seeds_and_the_best_options() -> None:
    trials = [
        trial(0.5, strength=1.0),
        trial(0.25, strength=9.0),
        trial(0.75, seed=11, strength=9.0),
    ]
    assert record(*trials, trial(0.9, 50, strength=3.0)).table().splitlines() == [
        "| x: method | options | images | seeds | accuracy (%) |",
        "| --- | --- | ---: | --- | ---: |",
        "| ewc | strength = 1 | 100 | 10 | **50.0** |",
        "| ewc | strength = 9 | 100 | 10, 11 | 50.0 |",
        "| ewc | strength = 3 | 50 | 10 | 90.0 |",
    ]


@pytest.fixture
def search(tmp_path: Path) -> Search:
    return Search("digits-2", EXPERIMENT, False, record_path(tmp_path, "a/b", True))


def test_trials_are_on_training_images_and_recorded(search: Search) -> None:
    assert search.path.name == "search-a-b-small.json.gz"
    found = search.trial("slda", {"shrinkage": 0.1}, 10)
    assert (found.images, found.held_out) == (4 * 8, 4 * module.HELD_OUT)
    assert found.accuracy > 0.5
    assert read_record(search.path) == search.record
    assert search.record.best("slda") == {"shrinkage": 0.1}


def test_trials_that_are_recorded_are_not_repeated(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = search.trial("slda", {"shrinkage": 0.1}, 10)
    again = Search("digits-2", EXPERIMENT, False, search.path)
    monkeypatch.setattr(module, "find_method", None)  # fails if a trial is run
    assert again.trial("slda", {"shrinkage": 0.1}, 10) == first


def test_another_experiment_is_not_mixed_in(search: Search) -> None:
    search.trial("ncm", {}, 10)
    more = replace(EXPERIMENT, stream=replace(EXPERIMENT.stream, per_class=9))
    assert Search("digits-2", more, False, search.path).record == search.record
    other = replace(EXPERIMENT, learning=Settings(rank=2, epochs=1))
    with pytest.raises(RememberingError, match=r"other settings \(settings\.learning\.rank\)"):
        Search("digits-2", other, False, search.path)


def test_one_option_after_the_other_is_selected(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fake(method: str, options: dict[str, float], seed: int) -> Trial:
        tried.append((method, tuple(options.values())))
        return trial(options["a"] - abs(options["b"] - 2), **options)

    monkeypatch.setattr(search, "trial", fake)
    axes = {"a": (1.0, 3.0, 2.0), "b": (1.0, 2.0, 3.0)}
    assert search.coordinate_search("ewc", axes, [10], also=["si"]) == {"a": 3, "b": 2}
    points = [(1, 1), (3, 1), (2, 1), (3, 2), (3, 3)]
    assert tried == [(method, point) for point in points for method in ("ewc", "si")]


def test_no_test_image_is_part_of_a_search() -> None:
    learned = make_stream(EXPERIMENT, held_out=5).tasks
    assert [len(data.test) for data in learned] == [10, 10]
    train = {image.numpy().tobytes() for data in learned for image in data.train.images}
    for data in learned:
        assert not train & {image.numpy().tobytes() for image in data.test.images}
    every = replace(EXPERIMENT, stream=replace(EXPERIMENT.stream, per_class=None))
    images = make_stream(every).tasks
    known = {image.numpy().tobytes() for data in images for image in data.train.images}
    for data in learned:
        assert {image.numpy().tobytes() for image in data.test.images} <= known


@pytest.fixture
def choose_joint(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    spec = importlib.util.spec_from_file_location("choose_joint", ROOT / "scripts/choose_joint.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    sys.modules.pop("choose_strengths", None)
    return loaded


def test_the_budget_of_the_search_for_joint_training(choose_joint: ModuleType) -> None:
    """Six trainings of 6 epochs and one of 12: 48 passes over each image."""
    small = choose_joint.within_budget(EXPERIMENT, 48 * 4 * 5 + 47)
    assert small.stream.per_class == 5
    assert choose_joint.within_budget(EXPERIMENT, 48 * 4 * 8) == EXPERIMENT
    with pytest.raises(RememberingError, match=r"allows 1 images per class; give at least 384"):
        choose_joint.within_budget(EXPERIMENT, 48 * 4)


RECORDS = sorted((ROOT / "results").glob("search-*.json.gz"))


@pytest.mark.parametrize("path", RECORDS, ids=[path.name.split(".")[0] for path in RECORDS])
def test_experiments_use_the_options_that_were_selected(path: Path) -> None:
    found = read_record(path)
    experiment = find(found.experiment).variants(found.small)[None]
    given = parse_options(experiment.options, list(METHODS))
    for method in {trial.method for trial in found.trials}:
        best = found.best(method)
        used = {**find_method(method).defaults, **given.get(method, {})}
        assert {name: used[name] for name in best} == best, method
    assert all(trial.seed >= module.FIRST_SEED for trial in found.trials)
    assert found.table() in (ROOT / "docs/baselines.md").read_text()
