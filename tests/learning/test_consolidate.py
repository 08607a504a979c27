"""Consolidation: statistics follow the new features, and only a better adapter is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support import TWO_LEVEL, learned, make_task
from torch import Tensor

from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.errors import RememberingError
from remembering.learning import consolidate as module
from remembering.learning.consolidate import _carry, _KeptImages, consolidate
from remembering.model import RememberingTransformer
from remembering.routing.symmetric import restore

pytestmark = pytest.mark.integration

SETTINGS = {**TWO_LEVEL, "adapters": "first", "memory": 12}


@pytest.fixture(scope="module")
def model(backbone: Backbone) -> RememberingTransformer:
    return learned(backbone, 3, **SETTINGS)


def test_replay_images_are_kept_without_a_capacity(model: RememberingTransformer) -> None:
    assert [len(memory.labels) for memory in model.state.memories.values()] == [9, 9, 9]


def test_a_linear_change_of_the_features_is_carried_exactly(
    model: RememberingTransformer, backbone: Backbone
) -> None:
    """If the new features are a linear map of the old ones, so are the statistics."""
    state = model.state
    classifier, kept = state.classifiers[0], _KeptImages.of(state, 0)
    blocks, rng = len(state.settings.classifier.layers), torch.Generator().manual_seed(0)
    before = restore(classifier.shared)
    width = len(before) // blocks
    old = torch.randn(4000, blocks * width, generator=rng)
    turn = torch.linalg.qr(torch.randn(width, width, generator=rng)).Q
    new = torch.cat([part @ turn for part in old.chunk(blocks, dim=1)], dim=1)
    columns = torch.arange(4000) % 6
    carried = _carry(classifier, old, new, columns, replace_rows(kept), torch.arange(4000), blocks)
    whole = torch.block_diag(*[turn] * blocks).double()
    scatter = whole.mT @ before @ whole
    error = (restore(carried.shared) - scatter).norm() / scatter.norm()
    assert error < 0.03, "up to the ridge"
    for number, expert in classifier.experts.items():
        moved = expert["sums"].double() @ whole
        assert (carried.experts[number]["sums"] - moved).norm() / moved.norm() < 0.03


def replace_rows(kept: _KeptImages) -> _KeptImages:
    held_out = torch.ones_like(kept.held_out)  # all of them calibrate
    return replace(kept, held_out=held_out)


def test_an_adapter_that_is_worse_is_not_kept(
    model: RememberingTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worse(state: object, backbone: Backbone, reference: Adapter, *rest: object) -> Adapter:
        return replace(reference, b=torch.randn_like(reference.b))

    monkeypatch.setattr(module, "_train", worse)
    monkeypatch.setattr(module, "_correct", iter_values(RIGHT, ~RIGHT))
    after, report = consolidate(model.state, model.backbone, 0)
    assert after is model.state
    assert not report.accepted


RIGHT = torch.ones(20, dtype=torch.bool)


def iter_values(*values: Tensor) -> object:
    iterator = iter(values)
    return lambda *_: next(iterator)


def test_a_better_adapter_replaces_the_old_one_and_keeps_the_reference(
    model: RememberingTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_correct", iter_values(~RIGHT, RIGHT))
    after, report = consolidate(model.state, model.backbone, 0)
    assert report.accepted
    assert after.references[0].adapter is model.state.adapters[0]
    assert after.references[0].classifier is model.state.classifiers[0]
    assert not torch.equal(after.adapters[0].b, model.state.adapters[0].b)
    consolidated = RememberingTransformer(model.backbone, state=after)
    images = torch.cat([make_task(i).images for i in range(3)])
    torch.testing.assert_close(consolidated.predict_proba(images).sum(1), torch.ones(36))
    consolidated.learn(make_task(3, ("a3", "b3")))
    state = consolidated.state
    assert list(state.references[0].classifier.experts) == [0, 1, 2, 3]
    assert list(state.classifiers[0].experts) == [0, 1, 2, 3]
    consolidated.forget("task 1")
    assert list(consolidated.state.references[0].classifier.experts) == [0, 2, 3]


def test_it_is_repeatable(model: RememberingTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[Tensor] = []
    for _ in range(2):
        monkeypatch.setattr(module, "_correct", iter_values(~RIGHT, RIGHT))
        results.append(consolidate(model.state, model.backbone, 0)[0].adapters[0].b)
    assert torch.equal(*results)


def test_without_replay_images_there_is_an_error(backbone: Backbone) -> None:
    model = learned(backbone, 2, **{**SETTINGS, "memory": 0})
    with pytest.raises(RememberingError, match="has no replay images"):
        consolidate(model.state, backbone, 0)
