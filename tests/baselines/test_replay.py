"""Methods that keep images of the past, or what stands for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support import make_task

from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES
from remembering.baselines.fetril import translated
from remembering.baselines.icarl import herded
from remembering.baselines.lwf import LwF
from remembering.baselines.mnemonics import Mnemonics
from remembering.baselines.ssre import merged
from remembering.errors import RememberingError
from remembering.learning.training import Batch, adapted

from .example import SETTINGS, STREAM, made, taught


def test_icarl_keeps_no_more_than_its_memory(backbone: Backbone) -> None:
    assert len(taught("icarl", backbone, memory=21).tensors["exemplars.0.targets"]) == 10
    for memory in (1, 3):
        with pytest.raises(RememberingError, match="needs a larger memory"):
            taught("icarl", backbone, memory=memory)


def test_herding_keeps_the_mean() -> None:
    """The mean of a few herded features is nearer to the class's than that of the first few."""
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    chosen = herded(features, torch.arange(40) % 2, size=8)
    assert len(set(chosen.tolist())) == 8
    for label, rows in ((0, chosen[:4]), (1, chosen[4:])):
        own = features[label::2]
        assert set((rows % 2).tolist()) == {label}
        off = [(part.mean(0) - own.mean(0)).norm() for part in (features[rows], own[:4])]
        assert off[0] < 0.5 * off[1]


def test_der_keeps_a_fair_sample(backbone: Backbone) -> None:
    """Each task has its share of the buffer, with outputs for the classes known when it came."""
    learner = taught("der", backbone, memory=60)
    targets, known = learner.tensors["buffer.targets"], learner.tensors["buffer.known"]
    assert len(targets) == len(learner.tensors["buffer.images"]) == 60
    first = targets < 2
    assert 20 <= int(first.sum()) <= 40
    assert torch.equal(known, torch.where(first, 2, 4))
    assert not bool(learner.tensors["buffer.answers"][first, 2:].any())
    assert learner.extra_state["seen"] == 192


def test_mnemonics_teach_a_head_better_than_the_images_they_were(backbone: Backbone) -> None:
    """After a step on them the head errs less on the task that they stand for."""
    data, losses = STREAM[0].train, []
    for epochs in (0, 10):
        learner = Mnemonics(backbone, SETTINGS, memory=10, epochs=epochs)
        learner.learn(data)
        images, targets = learner.exemplars.images, learner.exemplars.targets
        assert isinstance(images, torch.Tensor)
        assert images.dtype == torch.uint8
        lessons, asked = (
            learner.features(learner.token_cache(x), len(x)) for x in (images, data.images)
        )
        weight, bias = learner.head.weight.clone().requires_grad_(), learner.head.bias
        one_hot = torch.nn.functional.one_hot
        bce = torch.nn.functional.binary_cross_entropy_with_logits
        bce(lessons @ weight.mT + bias, one_hot(targets).float()).backward()
        assert weight.grad is not None
        after = asked @ (weight - 6 * weight.grad).mT + bias
        losses.append(bce(after, one_hot(data.targets).float()).item())
    assert losses[1] < losses[0]


def test_fetril_moves_features_to_the_old_means(backbone: Backbone) -> None:
    rng = torch.Generator().manual_seed(0)
    features, means = torch.randn(20, 5, generator=rng), torch.randn(3, 5, generator=rng)
    moved, owners = translated(means, features, torch.arange(20) % 2 + 3)
    for c in range(3):
        torch.testing.assert_close(moved[owners == c].mean(0), means[c])


def test_fetril_trains_its_adapter_once(backbone: Backbone) -> None:
    learner = made("fetril", backbone)
    learner.learn(STREAM[0].train)
    before = learner.tensors["adapter.b"]
    learner.learn(STREAM[1].train)
    assert torch.equal(learner.tensors["adapter.b"], before)


def test_il2a_finds_covariances_in_parts(backbone: Backbone) -> None:
    """Also of a class that comes back."""
    rng = torch.Generator().manual_seed(0)
    features, targets = torch.randn(60, 4, generator=rng) + 3, torch.arange(60) % 2
    learner = BASELINES["il2a"](backbone, SETTINGS)
    learner.classes = (0, 1)
    for part in (slice(0, 20), slice(20, 60)):
        learner.tensors |= learner.summary(features[part], targets[part])  # type: ignore[attr-defined]
        learner.learned += 1
    for c in (0, 1):
        wanted = features[targets == c].mT.cov(correction=0)
        torch.testing.assert_close(learner.tensors["covariances"][c], wanted, atol=1e-4, rtol=1e-4)


def test_il2a_has_nothing_to_mix_in_a_batch_of_one_class(backbone: Backbone) -> None:
    learner = made("il2a", backbone, replace(SETTINGS, batch_size=1, epochs=1))
    learner.learn(make_task(0, ("a", "b")))
    assert learner.tensors["head.weight"].isfinite().all()


def test_ssre_keeps_its_branches(backbone: Backbone) -> None:
    """Only the new one is trained; it is merged as more rank."""
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


def test_augmented_images_are_compared_with_themselves(backbone: Backbone) -> None:
    """What was prediction before a task is prediction of what is shown, not of the images as they are."""
    settings = replace(SETTINGS, augment="flip")
    learner = LwF(backbone, settings)
    learner.learn(STREAM[0].train)
    task = STREAM[1].train
    head = learner.head.extended(task.classes)
    training_set, index = learner.training_set(task, head), torch.arange(16)
    kept = learner.outputs(training_set.token_cache, len(training_set))
    tokens = training_set.tokens(index, settings, epoch=0)
    now = adapted(backbone, learner.adapter, tokens)
    features, outputs = backbone.pool(now), head.logits(backbone, now)
    batch = Batch(
        learner.adapter, head, index, tokens, features, outputs, training_set.targets[index], 0
    )
    before = learner.outputs_before(batch, kept)
    torch.testing.assert_close(before, outputs[:, : before.shape[1]])
    assert not torch.allclose(before, kept[index], atol=1e-3)
    assert torch.equal(learner.features_before(batch, kept), features)
