"""Finding, grouping and averaging results, with numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remembering.config import RouterSettings
from remembering.errors import RememberingError
from remembering.experiments.result import RouterResult, RunResult
from remembering.report.collect import collect, group_runs
from remembering.report.groups import Group, Seeds, Statistic, find_results

from .example import baselines, make_result, routing_result, unit_result

WriteRun = Callable[..., Path]


def group(*results: RunResult) -> Group:
    (found,) = group_runs(results)
    return found


def with_accuracy(seed: int, sample: float) -> RunResult:
    return make_result(2, seed, units={"sample": unit_result([1.0, sample], 0.9)})


def test_find_looks_below_and_lists_each_run_once(write_run: WriteRun) -> None:
    first = write_run("deep/er/a", make_result(seed=0))
    second = write_run("b", make_result(seed=1))
    found = find_results([second.parent, first, second / "results.json"])
    assert found == [second / "results.json", first / "results.json"]


def test_find_names_a_folder_without_results(tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match=r"no results\.json and no record in .*empty"):
        find_results([tmp_path / "empty"])


def test_statistic_by_hand() -> None:
    # mean of 0.5, 0.6 and 0.7 is 0.6; squares 0.01 + 0 + 0.01 over n - 1 = 2 is 0.01, root 0.1
    value = Statistic.of([0.5, 0.6, 0.7])
    assert value is not None
    assert (value.mean, value.deviation, value.n) == (pytest.approx(0.6), pytest.approx(0.1), 3)


def test_statistic_of_one_value_has_no_deviation() -> None:
    assert Statistic.of([None, 0.25]) == Statistic(0.25, None, 1)
    assert Statistic.of([None]) is None


def test_seeds_are_sorted_and_averaged() -> None:
    seeds = Seeds.of([with_accuracy(2, 0.7), with_accuracy(0, 0.5), with_accuracy(1, 0.6)])
    assert seeds.seeds == (0, 1, 2)
    value = seeds.accuracy("sample")
    assert value is not None
    assert value.mean == pytest.approx(0.6)
    assert value.deviation == pytest.approx(0.1)


def test_curve_averages_each_task() -> None:
    one = make_result(2, routing=routing_result(2, oracle_after=(1.0, 0.8)))
    two = make_result(2, seed=1, routing=routing_result(2, oracle_after=(0.9, 0.6)))
    first, second = group(one, two).curve(lambda routing: routing.oracle_after)
    assert first is not None
    assert second is not None
    assert (first.mean, second.mean) == (pytest.approx(0.95), pytest.approx(0.7))
    assert second.deviation == pytest.approx(0.1 * 2**0.5)


def test_baselines_are_beside_their_model_joint_training_first() -> None:
    found = group(*baselines(tasks=3)[::-1], make_result(3), make_result(3, seed=1))
    assert [baseline.method for baseline in found.baselines] == ["joint", "finetune"]
    assert found.baselines[0].accuracy_after() == (None, None, Statistic(0.93, None, 1))


def test_baselines_without_their_model_are_rejected() -> None:
    with pytest.raises(RememberingError, match="none of its model"):
        group_runs(baselines())


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
            folder = write_run(f"{i}-{seed}", make_result(seed=seed, **change))
    groups, comparisons = collect([folder.parent])
    assert [(g.experiment, g.small, g.backbone, g.variant, g.seeds) for g in groups] == [
        ("another", True, "bundled", None, (0, 1)),
        ("cifar10-5", False, "bundled", None, (0, 1)),
        ("cifar10-5", True, "bundled", None, (0, 1)),
        ("cifar10-5", True, "bundled", "E=10", (0, 1)),
        ("cifar10-5", True, "bundled", "E=3", (0, 1)),
        ("cifar10-5", True, "google/vit", None, (0, 1)),
    ]
    assert comparisons == []


def test_same_seed_twice_is_rejected() -> None:
    with pytest.raises(RememberingError, match=r"seed 3 of cifar10-5 .* found twice"):
        Seeds.of([make_result(seed=3), make_result(seed=3)])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"data": "mnist"}, r"stream\.source"),
        ({"epochs": 3}, r"learning\.epochs"),
        ({"image_size": 224}, "image_size"),
        ({"options": {"strength": 2.0}}, r"options\.strength"),
    ],
)
def test_results_with_other_settings_are_not_averaged(change: dict[str, Any], what: str) -> None:
    with pytest.raises(RememberingError, match=f"differ in {what}"):
        Seeds.of([make_result(seed=0), make_result(seed=1, **change)])


def test_streams_of_different_lengths_are_not_averaged() -> None:
    with pytest.raises(RememberingError, match="differ in number of tasks"):
        Seeds.of([make_result(5, seed=0), make_result(6, seed=1)])


def test_descriptions_and_commands_may_differ() -> None:
    other = make_result(seed=1, description="In other words.", command=("run", "x", "--rank", "1"))
    assert len(Seeds.of([make_result(), other]).results) == 2


def test_no_results_are_rejected() -> None:
    with pytest.raises(RememberingError, match="at least one"):
        Seeds.of([])


def test_units_are_ordered_by_size() -> None:
    units = make_result().units
    shuffled = {name: units[name] for name in ("task", "group_128", "sample", "group_32")}
    found = group(make_result(units=shuffled)).units
    assert found == ("sample", "group_32", "group_128", "task")


def test_command_contains_overrides_and_seeds() -> None:
    results = [make_result(seed=s, command=("run", "cifar10-5", "--rank", "8")) for s in (0, 2)]
    assert group(*results).command == "remember run cifar10-5 --rank 8 --seeds 0,2"


def test_command_is_quoted_for_a_shell() -> None:
    result = make_result(command=("run", "a; rm -rf\n~"))
    assert group(result).command == "remember run 'a; rm -rf ~' --seeds 0"


def test_slug_is_safe_for_files_and_anchors() -> None:
    result = make_result(experiment="../<b>", variant="E=3", backbone="x/y", small=False)
    assert group(result).slug == "b-e-3-x-y"
    assert group(make_result(experiment="§", backbone="§", small=False)).slug == "results"


def test_settings_contain_what_an_accuracy_needs() -> None:
    assert group(make_result(1)).settings == (
        "backbone bundled, data digits at 28×28 px, 1 task, router autoencoder on layer 0, seed 0"
    )
    router = RouterResult(RouterSettings(layers=(4, 8)), "negative log-likelihood", ((0.0,),))
    result = make_result(1, routing=routing_result(1, router=router))
    assert "router gaussian on layers 4, 8, seed 0" in group(result).settings
