"""Matrices show the right numbers: accuracy by task and time, confusions, router scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from remembering.evaluation.scores import AnswerSummary
from remembering.experiments.result import RunResult, TaskInfo
from remembering.report.groups import Seeds
from remembering.report.matrices import (
    Confusion,
    accuracy_matrix,
    confusion_matrix,
    router_scores,
)

from .example import GAUSSIAN, baselines, make_result, published_model, routing_result, unit_result
from .test_plots import texts


def with_scores(result: RunResult, scores: list[list[float]]) -> RunResult:
    assert result.routing is not None
    router = replace(result.routing.router, scores=tuple(map(tuple, scores)))
    return replace(result, routing=replace(result.routing, router=router))


def with_matrix(seed: int, *matrix: tuple[float | None, ...]) -> RunResult:
    unit = replace(unit_result([1.0] * len(matrix)), matrix=matrix)
    return make_result(len(matrix), seed, units={"sample": unit})


def with_answers(seed: int, classes: tuple[str, ...], *answers: str) -> RunResult:
    """Return a result of one task per class, with the answers to three images of each."""
    summaries = tuple(
        AnswerSummary.of(answer.split(), [label] * 3)
        for label, answer in zip(classes, answers, strict=True)
    )
    unit = replace(unit_result([1.0] * len(classes)), answers=summaries)
    tasks = tuple(TaskInfo(label, (label,), 9, 3, 0) for label in classes)
    return replace(make_result(len(classes), seed, units={"sample": unit}), tasks=tasks)


def test_accuracy_by_task_and_time_is_the_mean_over_seeds() -> None:
    one = with_matrix(0, (0.9, None), (0.5, 0.8))
    two = with_matrix(1, (0.7, None), (0.3, 0.8))
    plot = accuracy_matrix("x", "y", Seeds.of([one, two]))
    assert plot is not None
    assert [text for text in texts(plot) if text in ("80", "40")] == ["80", "40", "80"]
    assert "First task: 80.0 % when it was learned, 40.0 % after 2 tasks." in plot.numbers


def test_no_accuracy_matrix_of_a_method_that_is_evaluated_once() -> None:
    joint, finetune = baselines()
    assert accuracy_matrix("x", "y", Seeds.of([joint])) is None
    assert accuracy_matrix("x", "y", Seeds.of([finetune])) is not None
    assert accuracy_matrix("x", "y", Seeds.of([make_result(1)])) is None


def test_confusions_are_counted_over_seeds_in_the_order_of_learning() -> None:
    one = with_answers(0, ("dog", "cat"), "dog dog cat", "cat cat cat")
    two = with_answers(1, ("cat", "dog"), "dog dog cat", "dog dog dog")
    found = Confusion.of(Seeds.of([one, two]))
    assert found.labels == ("dog", "cat")
    assert np.array_equal(found.counts, [[5, 1], [2, 4]])
    assert found.frequent() == [("cat", "dog", 2), ("dog", "cat", 1)]
    assert found.table("x").rows == (("cat", "dog", "2"), ("dog", "cat", "1"))
    plot = confusion_matrix("x", "y", Seeds.of([one, two]))
    assert plot is not None
    assert [text for text in texts(plot) if text.isdigit()] == ["83", "17", "33", "67"]
    assert "cat as dog (2)" in plot.numbers


def test_an_answer_that_is_no_label_of_the_tasks_has_a_column() -> None:
    found = Confusion.of(Seeds.of([with_answers(0, ("dog",), "dog wolf wolf")]))
    assert found.labels == ("dog", "wolf")
    assert found.frequent() == [("dog", "wolf", 2)]


@pytest.mark.parametrize(("classes", "named"), [(20, True), (21, False)])
def test_many_classes_are_numbered(classes: int, named: bool) -> None:
    labels = tuple(f"class-{i}" for i in range(classes))
    result = with_answers(0, labels, *(f"{label} {label} {label}" for label in labels))
    shown = texts(confusion_matrix("x", "y", Seeds.of([result])))
    assert ("class-3" in shown) == named
    assert ("Answer (number of the class)" in shown) == (not named)


def test_scores_are_scaled_in_each_row_before_seeds_are_averaged() -> None:
    one = with_scores(make_result(2, seed=0), [[1.0, 3.0], [20.0, 10.0]])
    two = with_scores(make_result(2, seed=1), [[5.0, 1.0], [7.0, 7.0]])
    plot = router_scores("x", "y", Seeds.of([one, two]))
    # rows scaled: seed 0 [[0, 1], [1, 0]], seed 1 [[1, 0], [0, 0]]; a flat row has no spread
    cells = [text for text in texts(plot) if text in ("0.00", "0.50", "1.00")]
    assert cells == ["0.50", "0.50", "0.50", "0.00"]


def test_scores_have_the_name_of_what_they_are() -> None:
    ours = make_result(2, routing=routing_result(2, router=GAUSSIAN))
    for result, name in (
        (ours, "negative log-likelihood"),
        (published_model(tasks=2), "reconstruction error"),
    ):
        plot = router_scores("x", "y", Seeds.of([result]))
        assert plot is not None
        assert f"Expert of task ({name}, 0–1 per row)" in texts(plot)
        assert plot.title == f"x: {name} of the router"
        assert plot.caption.startswith(name.capitalize())


def test_tasks_are_named_only_if_they_are_the_same_for_every_seed() -> None:
    other = make_result(seed=1)
    other = replace(other, tasks=(replace(other.tasks[0], name="digits 7-3"), *other.tasks[1:]))
    same = texts(router_scores("x", "y", Seeds.of([make_result()])))
    mixed = texts(router_scores("x", "y", Seeds.of([make_result(), other])))
    assert "2: digits 2-3" in same
    assert not any("digits" in text for text in mixed)


def test_cells_are_annotated_up_to_ten_tasks() -> None:
    few = texts(router_scores("x", "y", Seeds.of([make_result(10)])))
    many = texts(router_scores("x", "y", Seeds.of([make_result(11)])))
    assert few.count("0.00") == 10
    assert "0.00" not in many


def test_methods_without_a_router_have_no_scores() -> None:
    assert router_scores("x", "y", Seeds.of(baselines()[1:])) is None
