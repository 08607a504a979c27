"""Finding, reading and averaging results, with numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remembering.errors import RememberingError
from remembering.report.results import (
    Group,
    Statistic,
    find_results,
    load_groups,
    load_results,
)

from .example import make_results

WriteRun = Callable[..., Path]


def with_accuracy(seed: int, sample: float, **changes: Any) -> dict[str, Any]:
    results = make_results(seed=seed, **changes)
    results["accuracy"]["sample"] = sample
    return results


def test_load_takes_a_file_or_its_folder(write_run: WriteRun, results: dict[str, Any]) -> None:
    folder = write_run("a", results)
    assert load_results(folder) == load_results(folder / "results.json") == results


def test_missing_file_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match=r"cannot read .*give a run directory"):
        load_results(tmp_path / "nowhere.json")


@pytest.mark.parametrize("text", ["{", '{"version": NaN}', "\x00"])
def test_broken_json_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "results.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RememberingError, match="not valid JSON"):
        load_results(file)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_bytes(b"\xff\xfe{}")
    with pytest.raises(RememberingError, match="not valid JSON"):
        load_results(file)


def test_find_looks_below_and_lists_each_run_once(write_run: WriteRun) -> None:
    first = write_run("deep/er/a", make_results(seed=0))
    second = write_run("b", make_results(seed=1))
    found = find_results([second.parent, first, second / "results.json"])
    assert found == [second / "results.json", first / "results.json"]


def test_find_says_where_it_found_nothing(tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match=r"no results\.json in .*empty"):
        find_results([tmp_path / "empty"])


def test_statistic_by_hand() -> None:
    # mean of 0.5, 0.6 and 0.7 is 0.6; squares 0.01 + 0 + 0.01 over n - 1 = 2 is 0.01, root 0.1
    value = Statistic.of([0.5, 0.6, 0.7])
    assert value is not None
    assert (value.mean, value.deviation, value.n) == (pytest.approx(0.6), pytest.approx(0.1), 3)


def test_statistic_of_one_value_has_no_deviation() -> None:
    assert Statistic.of([None, 0.25]) == Statistic(0.25, None, 1)
    assert Statistic.of([None]) is None


def test_group_averages_over_seeds_and_sorts_them() -> None:
    group = Group.of([with_accuracy(2, 0.7), with_accuracy(0, 0.5), with_accuracy(1, 0.6)])
    assert group.seeds == (0, 1, 2)
    value = group.statistic("accuracy", "sample")
    assert value is not None
    assert value.mean == pytest.approx(0.6)
    assert value.deviation == pytest.approx(0.1)


def test_curve_averages_each_task_by_itself() -> None:
    one, two = make_results(task_count=2, seed=0), make_results(task_count=2, seed=1)
    one["oracle_after"], two["oracle_after"] = [1.0, 0.8], [0.9, 0.6]
    first, second = Group.of([one, two]).curve("oracle_after")
    assert first is not None
    assert second is not None
    assert (first.mean, second.mean) == (pytest.approx(0.95), pytest.approx(0.7))
    assert second.deviation == pytest.approx(0.1 * 2**0.5)


def test_curve_keeps_gaps_and_leaves_out_what_was_not_measured() -> None:
    group = Group.of([make_results(task_count=3), make_results(task_count=3, seed=1, baselines={})])
    assert group.curve("baselines", "joint", "accuracy_after") == (
        None,
        None,
        Statistic(0.93, None, 1),
    )
    assert Group.of([make_results(ablated_after=None)]).curve("ablated_after") == ()


def test_groups_differ_in_experiment_variant_size_and_backbone(write_run: WriteRun) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"variant": "E=3"},
        {"variant": "E=10"},
        {"small": False},
        {"backbone": "google/vit"},
        {"experiment": "another"},
    ]
    for i, change in enumerate(changes):
        for seed in (0, 1):
            folder = write_run(f"{i}-{seed}", make_results(seed=seed, **change))
    groups = load_groups([folder.parent])
    assert [(g.experiment, g.small, g.backbone, g.variant, g.seeds) for g in groups] == [
        ("another", True, "bundled", None, (0, 1)),
        ("cifar10-5", False, "bundled", None, (0, 1)),
        ("cifar10-5", True, "bundled", None, (0, 1)),
        ("cifar10-5", True, "bundled", "E=10", (0, 1)),
        ("cifar10-5", True, "bundled", "E=3", (0, 1)),
        ("cifar10-5", True, "google/vit", None, (0, 1)),
    ]
    assert [folder.name for folder in groups[0].folders] == ["5-0", "5-1"]


def test_same_seed_twice_is_refused() -> None:
    with pytest.raises(RememberingError, match=r"seed 3 of cifar10-5 .* found twice"):
        Group.of([make_results(seed=3), make_results(seed=3)])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"data": "mnist"}, "data"),
        ({"image_size": 224}, "image_size"),
        ({"router": {"kind": "gaussian"}}, "router"),
        ({"tasks": make_results(task_count=2)["tasks"]}, "number of tasks"),
    ],
)
def test_unlike_runs_are_not_averaged(change: dict[str, Any], what: str) -> None:
    with pytest.raises(RememberingError, match=f"differ in {what}"):
        Group.of([make_results(seed=0), make_results(seed=1, **change)])


def test_empty_group_is_refused() -> None:
    with pytest.raises(RememberingError, match="at least one result"):
        Group.of([])


def test_units_go_from_one_image_to_the_whole_task() -> None:
    group = Group.of([make_results(units=["task", "group_128", "sample", "group_32"])])
    assert group.units == ("sample", "group_32", "group_128", "task")


def test_command_runs_the_same_seeds_again() -> None:
    group = Group.of([make_results(seed=seed) for seed in (0, 1, 2)])
    assert group.command == "remember run cifar10-5 --small --seeds 0,1,2"
    full = Group.of([make_results(small=False, variant="E=3")])
    assert full.command == "remember run cifar10-5 --seeds 0"


def test_command_quotes_what_a_shell_would_run() -> None:
    group = Group.of([make_results(experiment="a; rm -rf\n~")])
    assert group.command == "remember run 'a; rm -rf ~' --small --seeds 0"


def test_slug_is_safe_for_files_and_anchors() -> None:
    group = Group.of(
        [make_results(experiment="../<b>", variant="E=3", backbone="x/y", small=False)]
    )
    assert group.slug == "b-e-3-x-y"
    nameless = Group.of([make_results(experiment="§", backbone="§", small=False)])
    assert nameless.slug == "results"


def test_settings_say_what_an_accuracy_needs() -> None:
    assert Group.of([make_results(task_count=1)]).settings == (
        "backbone bundled, data digits at 28×28 px, 1 task, router autoencoder on layer 0, seed 0"
    )
    deep = make_results(router={"kind": "gaussian", "layers": [4, 8]})
    assert "router gaussian on layers 4, 8, seed 0" in Group.of([deep]).settings
