"""Routing units, metrics, and an evaluator that reuses what cannot have changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import FAST, make_task

from remembering.backbones.backbone import Backbone
from remembering.data.streams.stream import TaskData
from remembering.errors import RememberingError
from remembering.evaluation.metrics import forgetting
from remembering.evaluation.protocols import Evaluator, groups
from remembering.model import RememberingTransformer

UNITS = ("sample", "group_5", "task")


@given(st.integers(1, 50), st.integers(1, 60))
def test_groups_are_consecutive_and_of_the_size_asked(size: int, count: int) -> None:
    numbers = groups(f"group_{size}", count)
    assert len(numbers) == count
    sizes = numbers.bincount().tolist()
    assert all(n == size for n in sizes[:-1])
    assert 1 <= sizes[-1] <= size
    assert torch.equal(groups("group_1", count), groups("sample", count))
    assert groups("task", count).unique().numel() == 1


@pytest.mark.parametrize("unit", ["batch", "group_", "group_0", "group_x", ""])
def test_unknown_units_are_refused(unit: str) -> None:
    with pytest.raises(RememberingError, match="is unknown"):
        groups(unit, 3)


def test_forgetting_by_hand() -> None:
    assert forgetting([[1.0]]) is None
    matrix = [[0.9, None, None], [0.8, 0.7, None], [0.5, 0.75, 1.0]]
    assert forgetting(matrix) == pytest.approx(((0.9 - 0.5) + (0.7 - 0.75)) / 2)


def make_stream() -> tuple[TaskData, ...]:
    return tuple(
        TaskData(make_task(i, (f"a{i}", f"b{i}")), make_task(i, (f"a{i}", f"b{i}"), per_class=4))
        for i in range(3)
    )


@pytest.mark.parametrize("capacity", [None, 2])
def test_the_kept_answers_equal_fresh_ones(capacity: int | None, backbone: Backbone) -> None:
    stream = make_stream()
    model = RememberingTransformer.from_backbone(backbone, **FAST, capacity=capacity, memory=6)
    evaluator = Evaluator(UNITS)
    for data in stream:
        model.learn(data.train)
        assert evaluator.score(model, stream) == Evaluator(UNITS).score(model, stream)


def test_scores_agree_with_predict(backbone: Backbone) -> None:
    stream = make_stream()
    model = RememberingTransformer.from_backbone(backbone, **FAST)
    for data in stream:
        model.learn(data.train)
    score = Evaluator(UNITS).score(model, stream)
    for j, data in enumerate(stream):
        for unit in UNITS:
            prediction = model.predict(data.test.images, groups(unit, len(data.test)).tolist())
            right = [a == b for a, b in zip(prediction.labels, data.test.labels, strict=True)]
            assert score.tasks[j].accuracy[unit] == pytest.approx(sum(right) / len(right))
            chosen = [name == data.train.name for name in prediction.tasks]
            assert score.tasks[j].routing_accuracy[unit] == pytest.approx(sum(chosen) / len(chosen))
        torch.testing.assert_close(
            torch.tensor(score.tasks[j].errors, dtype=torch.float64), prediction.errors.mean(0)
        )


def test_only_new_pairs_are_run(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_stream()
    model = RememberingTransformer.from_backbone(backbone, **FAST)
    asked: list[int] = []
    real = RememberingTransformer.adapter_logits

    def counted(self: Any, images: Any, adapter: int, distributed: Any) -> Any:
        asked.append(adapter)
        return real(self, images, adapter, distributed)

    monkeypatch.setattr(RememberingTransformer, "adapter_logits", counted)
    evaluator = Evaluator(UNITS)
    for data in stream:
        model.learn(data.train)
        evaluator.score(model, stream)
    assert len(asked) == 3 * 3
