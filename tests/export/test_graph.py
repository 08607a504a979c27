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
from remembering.errors import RememberingError
from remembering.export.embedding import Embedding
from remembering.export.graph import answer_graph
from remembering.export.routers import router_graph
from remembering.inference.prediction import Prediction
from remembering.model import RememberingTransformer
from remembering.routing.base import Router

from .example import hard_task, queries

pytestmark = pytest.mark.integration
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
    "autoencoder": {**HEADS, "router": RouterSettings("autoencoder", epochs=40, lr=0.05)},
    "sigmoid autoencoder": {
        **HEADS,
        "router": RouterSettings("autoencoder", epochs=40, lr=0.05, form="sigmoid", hidden=4),
    },
    "subspace": HEADS,
    "gaussian router and heads": {**HEADS, "router": RouterSettings()},
    "autoencoder and gaussians": {
        **GAUSSIANS,
        "router": RouterSettings("autoencoder", epochs=40, lr=0.05),
    },
    "fusion": {**HEADS, "capacity": 1},
}


@pytest.fixture(autouse=True)
def second_views(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of second views of each batch.

    Branches in Python: outside of an export, `torch.cond` compiles its branches.
    """
    counts: list[int] = []

    def cond(
        condition: Tensor,
        then: Callable[..., Tensor],
        otherwise: Callable[..., Tensor],
        operands: tuple[Tensor, ...],
    ) -> Tensor:
        counts.append(int(operands[3].sum()))
        return then(*operands) if condition else otherwise(*operands)

    monkeypatch.setattr(torch, "cond", cond)
    return counts


def taught(
    backbone: Backbone, settings: dict[str, Any], classes: tuple[str, ...] = ("a{0}", "b{0}", "c")
) -> RememberingTransformer:
    model = RememberingTransformer.from_backbone(backbone, **settings)
    for number in range(3):
        model.learn(hard_task(number, tuple(name.format(number) for name in classes)))
    return model


def check(model: RememberingTransformer, images: Tensor) -> Prediction:
    expected = model.predict(images, false_alarm_rate=0.5)
    assert expected.novelty is not None
    graph = answer_graph(model.state, model.backbone)
    with torch.no_grad():
        found = graph(model.backbone.prepare(images))
    torch.testing.assert_close(found.probabilities, expected.probabilities, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.p_value, expected.novelty, rtol=0, atol=1e-5)
    assert [model.tasks[i].name for i in found.task.tolist()] == expected.tasks
    assert float(expected.confidence.min()) < 0.99, "the test is too easy"
    return expected


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations(name: str, backbone: Backbone, second_views: list[int]) -> None:
    model = taught(backbone, CONFIGURATIONS[name])
    images = queries(16)
    prediction = check(model, images)
    if len(model.state.adapters) > 1:
        assert len(prediction.adapters.unique()) > 1
    if name == "several adapters":
        assert 0 < second_views[0] < len(images)
    if name == "second view of all":
        assert second_views == [len(images)]
    if name == "second view of none":
        assert second_views == []


def test_the_task_of_a_shared_head_has_the_label(backbone: Backbone) -> None:
    model = taught(backbone, CONFIGURATIONS["fusion"], ("a{0}", "b{0}"))
    prediction = check(model, queries(16))
    routed = [model.tasks[i].name for i in prediction.scores.argmin(1).tolist()]
    assert prediction.tasks != routed


def test_one_class_per_adapter_has_no_second_view(backbone: Backbone) -> None:
    model = taught(backbone, CONFIGURATIONS["second view of all"], ("a{0}", "b{0}"))
    for number in range(3):
        model.remove_class(f"task {number}", f"b{number}")
    prediction = model.predict(queries(16), false_alarm_rate=0.5)
    with torch.no_grad():
        found = answer_graph(model.state, backbone)(queries(16))
    torch.testing.assert_close(found.probabilities, prediction.probabilities)
    assert [model.tasks[i].name for i in found.task.tolist()] == prediction.tasks


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_of_all_families(family: str, checkpoints: dict[str, Path]) -> None:
    backbone = Backbone.load(checkpoints[family], image_size=32)  # positions are interpolated
    images = queries(32)
    with torch.no_grad():
        found = Embedding(backbone)(images)
    torch.testing.assert_close(found, backbone.embed(images), rtol=1e-4, atol=1e-5)


def test_a_frozen_head(checkpoints: dict[str, Path]) -> None:
    backbone = Backbone.load(checkpoints["dinov2-swiglu-classifier"])
    check(taught(backbone, {**HEADS, "head": "frozen"}), queries(16))


def test_patches_without_a_cls_token(checkpoints: dict[str, Path]) -> None:
    backbone = Backbone.load(checkpoints["siglip"])
    check(taught(backbone, HEADS), queries(16))
    check(taught(backbone, GAUSSIANS), queries(16))


def test_other_routers_are_refused(backbone: Backbone) -> None:
    class Other(Router):
        """A router that the export does not know."""

    Other.__abstractmethods__ = frozenset()
    with pytest.raises(RememberingError, match=r"remembering\.export\.routers"):
        router_graph(Other(RouterSettings()))
