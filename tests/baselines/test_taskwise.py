"""Tests of methods with one head per task."""

from __future__ import annotations

import pytest
import torch

from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.baselines.clom import CLOM
from remembering.baselines.finetune import FineTuning
from remembering.baselines.hypernet import HyperNet
from remembering.baselines.rotations import RotatedImages
from remembering.baselines.supsup import SupSup
from remembering.data.task import Task
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import adapted

from .example import DIGITS, SETTINGS, STREAM


def test_hypernetwork_starts_like_a_new_adapter(backbone: Backbone) -> None:
    generated = HyperNet(backbone, SETTINGS).new_adapter().active()
    new = Adapter.new(backbone, SETTINGS.rank, 0, torch.Generator().manual_seed(0))
    assert generated.a.shape == new.a.shape
    assert not generated.b.any()
    assert float(generated.a.std()) == pytest.approx(float(new.a.std()), rel=0.3)


def test_hypernetwork_preserves_old_adapters(backbone: Backbone) -> None:
    changes = []
    for strength in (0.0, 0.01):
        learner = HyperNet(backbone, SETTINGS, strength=strength)
        learner.learn(STREAM[0].train)
        before = learner.adapter(0).generate()
        learner.learn(STREAM[1].train)
        changes.append(float((learner.adapter(0).generate() - before).norm()))
    assert changes[1] < 0.5 * changes[0]


def test_hypernetwork_changes_an_adapter_about_as_much_as_training_it(backbone: Backbone) -> None:
    """Independently of the number of hidden units; B starts from zero in both."""
    hypernet, plain = HyperNet(backbone, SETTINGS, hidden=128), FineTuning(backbone, SETTINGS)
    for learner in (hypernet, plain):
        learner.learn(STREAM[0].train)
    generated, trained = hypernet.adapter(0).active().b, plain.adapter.b
    assert 1 / 3 < float(generated.abs().mean() / trained.abs().mean()) < 3


def test_supsup_trains_no_weight(backbone: Backbone) -> None:
    """Adapters of all tasks have the same random weights under different masks."""
    learner = SupSup(backbone, SETTINGS)
    assert not learner.new_adapter().active().b.any()
    for data in STREAM:
        learner.learn(data.train)
    first, second = (learner.adapter(number).b for number in (0, 1))
    assert set(first.abs().unique().tolist()) == set(second.abs().unique().tolist())
    both = (first != 0) & (second != 0)
    assert torch.equal(first[both], second[both])
    assert not torch.equal(first != 0, second != 0)


@pytest.mark.parametrize("g", [0, 1])
def test_one_row_represents_all_superfluous_outputs_of_supsup(g: int, backbone: Backbone) -> None:
    """Inferred tasks are the same as with one row per superfluous output."""
    learner = SupSup(backbone, SETTINGS, outputs=7, g=g)
    for data in (STREAM[0], DIGITS[2]):
        learner.learn(data.train)
    tokens = TokenCache(backbone, STREAM[0].test.images, 0)[torch.arange(8)]
    inferred = learner.infer_task(tokens)
    adapters, heads = ([part(t) for t in (0, 1)] for part in (learner.adapter, learner.head))
    rows = torch.tensor([0, 1, 2, 2, 2, 2, 2])
    for n, token in enumerate(tokens):
        alpha = torch.full((2,), 0.5, requires_grad=True)
        a, b = (
            sum(w * getattr(x, name) for w, x in zip(alpha, adapters, strict=True)) for name in "ab"
        )
        z = sum(
            w
            * head.with_tensors(head.weight[rows], head.bias[rows]).logits(
                backbone, adapted(backbone, Adapter(a, b, 0), token[None])
            )
            for w, head in zip(alpha, heads, strict=True)
        )[0]
        z = torch.cat([z[:2].detach(), z[2:]]) if g else z
        objective = z.logsumexp(0) if g else torch.special.entr(z.softmax(0)).sum()
        assert int(torch.autograd.grad(objective, alpha)[0].argmin()) == int(inferred[n])


def test_supsup_supports_tasks_of_unequal_size(backbone: Backbone) -> None:
    three = Task("three", STREAM[0].train.images[:9], list("abcabcabc"))
    two = Task("two", STREAM[1].train.images[:8], list("dedededede")[:8])
    learner = SupSup(backbone, SETTINGS)
    for task in (three, two):
        learner.learn(task)
    assert learner.scores(STREAM[0].test.images).shape == (len(STREAM[0].test), 5)


def test_clom_recognizes_rotations(backbone: Backbone) -> None:
    """The largest logit over classes and rotations identifies the rotation of an image."""
    learner = CLOM(backbone, SETTINGS)
    data = STREAM[0]
    learner.learn(data.train)
    rotated = RotatedImages(backbone, data.test.images)
    logits = learner.task_logits(0, TokenCache(backbone, rotated, 0)[torch.arange(len(rotated))])
    rotation = torch.arange(len(rotated)) // len(data.test)
    assert float((logits.argmax(1) // 2 == rotation).float().mean()) > 0.6
