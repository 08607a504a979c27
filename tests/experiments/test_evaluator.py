"""Routing units, metrics, and an evaluator that reuses what cannot have changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import FAST, TWO_LEVEL, make_task

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES
from remembering.config import Settings
from remembering.data.streams.stream import TaskData
from remembering.errors import RememberingError
from remembering.evaluation.metrics import accuracy, accuracy_after, forgetting
from remembering.evaluation.scores import AnswerSummary
from remembering.evaluation.units import groups, unit_size
from remembering.experiments import evaluator as module
from remembering.experiments.evaluator import Evaluator
from remembering.model import RememberingTransformer

pytestmark = pytest.mark.integration

UNITS = ("sample", "group_5", "task")


@given(st.integers(1, 50), st.integers(1, 60))
def test_groups_are_consecutive_and_of_the_given_size(size: int, count: int) -> None:
    numbers = groups(f"group_{size}", count)
    assert len(numbers) == count
    assert numbers == sorted(numbers)
    sizes = [numbers.count(number) for number in dict.fromkeys(numbers)]
    assert all(n == size for n in sizes[:-1])
    assert 1 <= sizes[-1] <= size
    assert groups("group_1", count) == groups("sample", count)
    assert set(groups("task", count)) == {0}


@pytest.mark.parametrize("unit", ["batch", "group_", "group_0", "group_x", "group_²", ""])
def test_unknown_units_are_rejected(unit: str) -> None:
    with pytest.raises(RememberingError, match="is unknown"):
        unit_size(unit)
    with pytest.raises(RememberingError, match="is unknown"):
        Evaluator((unit,))


def test_forgetting_by_hand() -> None:
    assert forgetting([[1.0]]) is None
    matrix = [[0.9, None, None], [0.8, 0.7, None], [0.5, 0.75, 1.0]]
    assert forgetting(matrix) == pytest.approx(((0.9 - 0.5) + (0.7 - 0.75)) / 2)


def test_a_learner_that_is_evaluated_once_has_no_forgetting() -> None:
    matrix = [[None, None], [0.5, 1.0]]
    assert accuracy_after(matrix) == [None, 0.75]
    assert forgetting(matrix) is None


def make_stream() -> tuple[TaskData, ...]:
    return tuple(
        TaskData(make_task(i, (f"a{i}", f"b{i}")), make_task(i, (f"a{i}", f"b{i}"), per_class=4))
        for i in range(3)
    )


def learning(backbone: Backbone, **changes: Any) -> Iterator[RememberingTransformer]:
    """Yield a model after each task of the stream."""
    model = RememberingTransformer.from_backbone(backbone, **{**FAST, **changes})
    for data in make_stream():
        model.learn(data.train)
        yield model


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "heads": {},
    "heads, fused": {"capacity": 2, "memory": 6},
    "one adapter": {**TWO_LEVEL, "adapters": "first"},
    "an adapter per task": {**TWO_LEVEL, "adapters": "task"},
    "consolidated": {**TWO_LEVEL, "adapters": "first", "memory": 8, "consolidate_every": 2},
}


@pytest.mark.parametrize("changes", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_what_is_reused_equals_what_is_computed_again(
    changes: dict[str, Any], backbone: Backbone
) -> None:
    stream, evaluator = make_stream(), Evaluator(UNITS)
    for model in learning(backbone, **changes):
        assert evaluator.score(model, stream) == Evaluator(UNITS).score(model, stream)


@pytest.mark.parametrize("changes", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_scores_agree_with_predict(changes: dict[str, Any], backbone: Backbone) -> None:
    stream = make_stream()
    *_, model = learning(backbone, **changes)
    score = Evaluator(UNITS).score(model, stream)
    flagged = []
    for task, data in zip(score.tasks, stream, strict=True):
        for unit in UNITS:
            numbers = None if unit == "sample" else groups(unit, len(data.test))
            prediction = model.predict(data.test.images, groups=numbers)
            reached = accuracy(prediction.labels, data.test.labels)
            assert task.accuracy[unit] == pytest.approx(reached)
            assert task.answers[unit] == AnswerSummary.of(prediction.labels, data.test.labels)
            if changes.get("capacity"):
                continue  # scores are of the router's choice; an answer names a task of its label
            routed = accuracy(prediction.tasks, [data.train.name] * len(data.test))
            assert task.routing_accuracy[unit] == pytest.approx(routed)
        flagged += model.predict(data.test.images, false_alarm_rate=0.05).unknown.tolist()
    assert score.false_alarms == pytest.approx(sum(flagged) / len(flagged))


def test_a_baseline_is_scored_on_single_images(backbone: Backbone) -> None:
    stream = make_stream()
    learner = BASELINES["ncm"](backbone, Settings())
    for data in stream[:2]:
        learner.learn(data.train)
    score = Evaluator(UNITS).score(learner, stream)
    assert len(score.tasks) == 2
    for task, data in zip(score.tasks, stream, strict=False):
        answers = learner.predict(data.test.images).labels
        assert task.accuracy == {"sample": accuracy(answers, data.test.labels)}
        assert task.answers == {"sample": AnswerSummary.of(answers, data.test.labels)}
        assert task.oracle is None


def test_each_adapter_is_run_once_per_task(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    real = module.adapter_outputs

    def counted(state: Any, backbone: Any, images: Any, adapter: int, distributed: Any) -> Any:
        runs.append(adapter)
        return real(state, backbone, images, adapter, distributed)

    monkeypatch.setattr(module, "adapter_outputs", counted)
    evaluator = Evaluator(UNITS)
    for model in learning(backbone):
        evaluator.score(model, make_stream())
    assert len(runs) == 3 * 3
