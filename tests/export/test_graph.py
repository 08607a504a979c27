"""The graph that is exported answers as `predict` does, before it is converted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import FAMILIES, FAST, TWO_LEVEL
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.config import ClassifierSettings, RouterSettings
from remembering.data.task import Task
from remembering.export.graph import GaussianGraph, answer_graph
from remembering.model import RememberingTransformer
from remembering.runtime.text import printable

from .example import hard_task, queries

HEADS = {**FAST, "epochs": 2}
GAUSSIANS = {**TWO_LEVEL, "epochs": 1, "adapters": "task"}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "one adapter": {**GAUSSIANS, "adapters": "first"},
    "several adapters": GAUSSIANS,
    "shared adapters": {**GAUSSIANS, "capacity": 2},
    "adapters from layer 0": {**GAUSSIANS, "first_layer": 0},
    "second view of all": {**GAUSSIANS, "classifier": ClassifierSettings(second_view=1)},
    "second view of none": {**GAUSSIANS, "classifier": ClassifierSettings(second_view=0)},
    "logit correction": {**GAUSSIANS, "classifier": ClassifierSettings(replay=8)},
    "autoencoder": {**HEADS, "router": RouterSettings("autoencoder", epochs=1)},
    "sigmoid autoencoder": {
        **HEADS,
        "router": RouterSettings("autoencoder", epochs=1, form="sigmoid", hidden=4),
    },
    "subspace": HEADS,
    "gaussian router and heads": {**HEADS, "router": RouterSettings()},
    "autoencoder and gaussians": {**GAUSSIANS, "router": RouterSettings("autoencoder", epochs=1)},
    "fusion": {**HEADS, "capacity": 1},
}


@pytest.fixture(autouse=True)
def plain_cond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branch in Python: outside of an export, `torch.cond` compiles its branches."""

    def cond(
        condition: Tensor,
        then: Callable[..., Tensor],
        otherwise: Callable[..., Tensor],
        operands: tuple[Tensor, ...],
    ) -> Tensor:
        return then(*operands) if condition else otherwise(*operands)

    monkeypatch.setattr(torch, "cond", cond)


def check(model: RememberingTransformer, images: Tensor) -> None:
    expected = model.predict(images, false_alarm_rate=0.5)
    assert expected.novelty is not None
    graph = answer_graph(model.state, model.backbone)
    with torch.no_grad():
        found = graph(model.backbone.prepare(images).expand(-1, 3, -1, -1))
    torch.testing.assert_close(found.probabilities, expected.probabilities, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.p_value, expected.novelty, rtol=0, atol=1e-5)
    assert [model.tasks[i].name for i in found.task.tolist()] == expected.tasks
    assert 0.01 < float(expected.probabilities.max(1).values.min()) < 0.99, "the test is too easy"


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations(name: str, backbone: Backbone) -> None:
    model = RememberingTransformer.from_backbone(backbone, **CONFIGURATIONS[name])
    for number in range(3):
        model.learn(hard_task(number, (f"a{number}", f"b{number}", f"c{number}")))
    check(model, queries(16))
