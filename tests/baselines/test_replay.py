"""Tests of methods that replay images, features or prototypes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support import make_task

from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES
from remembering.baselines.fetril import translate
from remembering.baselines.icarl import herd_greedily
from remembering.baselines.lwf import LwF
from remembering.baselines.mnemonics import Mnemonics
from remembering.baselines.ssre import merged
from remembering.errors import RememberingError
from remembering.learning.training import Batch, adapted

from .example import SETTINGS, STREAM, made, taught


def test_icarl_respects_its_memory(backbone: Backbone) -> None:
    assert len(taught("icarl", backbone, memory=21).tensors["exemplars.0.targets"]) == 10
    for memory in (1, 3):
        with pytest.raises(RememberingError, match="needs a larger memory"):
            taught("icarl", backbone, memory=memory)


def test_herding_keeps_the_mean() -> None:
    """The mean of a few herded features is closer to the class mean than that of the first few."""
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    chosen = herd_greedily(features, torch.arange(40) % 2, size=8)
    assert len(set(chosen.tolist())) == 8
    for label, rows in ((0, chosen[:4]), (1, chosen[4:])):
        members = features[label::2]
        assert set((rows % 2).tolist()) == {label}
        errors = [(part.mean(0) - members.mean(0)).norm() for part in (features[rows], members[:4])]
        assert errors[0] < 0.5 * errors[1]


def test_der_buffer_is_a_uniform_sample(backbone: Backbone) -> None:
    """Each task has its share of the buffer, with logits of the classes known at that time."""
    learner = taught("der", backbone, memory=60)
    targets, known = learner.tensors["buffer.targets"], learner.tensors["buffer.known"]
    assert len(targets) == len(learner.tensors["buffer.images"]) == 60
    first = targets < 2
    assert 20 <= int(first.sum()) <= 40
    assert torch.equal(known, torch.where(first, 2, 4))
    assert not bool(learner.tensors["buffer.answers"][first, 2:].any())
    assert learner.extra_state["seen"] == 192


def test_mnemonics_train_a_head_better_than_the_original_images(backbone: Backbone) -> None:
    """After a step on them, the loss of the head on their task is lower."""
    data, losses = STREAM[0].train, []
    for epochs in (0, 10):
        learner = Mnemonics(backbone, SETTINGS, memory=10, epochs=epochs)
        learner.learn(data)
        images, targets = learner.exemplars.images, learner.exemplars.targets
        assert isinstance(images, torch.Tensor)
        assert images.dtype == torch.uint8
        inner, outer = (
            learner.features(learner.token_cache(x), len(x)) for x in (images, data.images)
        )
        weight, bias = learner.head.weight.clone().requires_grad_(), learner.head.bias
        one_hot = torch.nn.functional.one_hot
        bce = torch.nn.functional.binary_cross_entropy_with_logits
        bce(inner @ weight.mT + bias, one_hot(targets).float()).backward()
        assert weight.grad is not None
        after = outer @ (weight - 6 * weight.grad).mT + bias
        losses.append(bce(after, one_hot(data.targets).float()).item())
    assert losses[1] < losses[0]


def test_fetril_translates_features_to_old_means(backbone: Backbone) -> None:
    rng = torch.Generator().manual_seed(0)
    features, means = torch.randn(20, 5, generator=rng), torch.randn(3, 5, generator=rng)
    pseudo, classes = translate(means, features, torch.arange(20) % 2 + 3)
    for c in range(3):
        torch.testing.assert_close(pseudo[classes == c].mean(0), means[c])


def test_fetril_trains_its_adapter_once(backbone: Backbone) -> None:
    learner = made("fetril", backbone)
    learner.learn(STREAM[0].train)
    before = learner.tensors["adapter.b"]
    learner.learn(STREAM[1].train)
    assert torch.equal(learner.tensors["adapter.b"], before)


def test_il2a_updates_covariances(backbone: Backbone) -> None:
    """Covariances of reappearing classes cover the images of all tasks."""
    rng = torch.Generator().manual_seed(0)
    features, targets = torch.randn(60, 4, generator=rng) + 3, torch.arange(60) % 2
    learner = BASELINES["il2a"](backbone, SETTINGS)
    learner.classes = (0, 1)
    for part in (slice(0, 20), slice(20, 60)):
        learner.tensors |= learner.statistics(features[part], targets[part])  # type: ignore[attr-defined]
        learner.learned += 1
    for c in (0, 1):
        expected = features[targets == c].mT.cov(correction=0)
        torch.testing.assert_close(
            learner.tensors["covariances"][c], expected, atol=1e-4, rtol=1e-4
        )


def test_il2a_supports_batches_of_one_class(backbone: Backbone) -> None:
    learner = made("il2a", backbone, replace(SETTINGS, batch_size=1, epochs=1))
    learner.learn(make_task(0, ("a", "b")))
    assert learner.tensors["head.weight"].isfinite().all()


def test_ssre_freezes_and_merges_branches(backbone: Backbone) -> None:
    """Only the new branch is trained; merging increases the rank."""
    learner = made("ssre", backbone)
    learner.learn(STREAM[0].train)
    before, trained = dict(learner.tensors), learner.trained
    learner.learn(STREAM[1].train)
    rank = SETTINGS.rank
    assert learner.tensors["adapter.a"].shape[2] == 2 * rank
    assert torch.equal(learner.tensors["adapter.a"][:, :, :rank], before["adapter.a"])
    assert torch.equal(learner.tensors["adapter.b"][..., :rank], before["adapter.b"])
    assert learner.tensors["adapter.b"][..., rank:].any()
    assert learner.trained == trained + 2 * 97


def test_ssre_merges_branches_exactly(backbone: Backbone) -> None:
    rng = torch.Generator().manual_seed(0)
    one, two = (Adapter.new(backbone, 2, 0, rng) for _ in range(2))
    one, two = (replace(each, b=torch.randn(each.b.shape, generator=rng)) for each in (one, two))
    both = merged(one, two)
    torch.testing.assert_close(both.b @ both.a, one.b @ one.a + two.b @ two.a)


def test_distillation_targets_are_recomputed_for_augmented_images(backbone: Backbone) -> None:
    """Old logits and features belong to the augmented images, not to the original ones."""
    settings = replace(SETTINGS, augment="flip")
    learner = LwF(backbone, settings)
    learner.learn(STREAM[0].train)
    task = STREAM[1].train
    head = learner.head.extended(task.classes)
    training_set, index = learner.training_set(task, head), torch.arange(16)
    original = learner.outputs(training_set.token_cache, len(training_set))
    tokens = training_set.tokens(index, settings, epoch=0)
    now = adapted(backbone, learner.adapter, tokens)
    features, outputs = backbone.pool(now), head.logits(backbone, now)
    batch = Batch(
        learner.adapter, head, index, tokens, features, outputs, training_set.targets[index], 0
    )
    before = learner.outputs_before(batch, original)
    torch.testing.assert_close(before, outputs[:, : before.shape[1]])
    assert not torch.allclose(before, original[index], atol=1e-3)
    assert torch.equal(learner.features_before(batch, original), features)
