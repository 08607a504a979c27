"""Tests of methods that constrain changes of one adapter."""

from __future__ import annotations

from dataclasses import replace

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES
from remembering.baselines.muc import MUC
from remembering.baselines.rotations import RotatedImages
from remembering.inference.token_cache import TokenCache

from .example import SETTINGS, STREAM, made, taught


def test_ewc_limits_changes_of_important_parameters(backbone: Backbone) -> None:
    changes = []
    for strength in (0.0, 1e5):
        learner = taught("ewc", backbone, strength=strength)
        weight = learner.tensors["fisher.0.a"]
        difference = learner.tensors["adapter.a"] - learner.tensors["at.0.a"]
        changes.append(float((weight * difference.square()).sum()))
    assert changes[1] < 0.5 * changes[0]


def test_fisher_information_of_a_head_alone(backbone: Backbone) -> None:
    """For the bias of a softmax, E (∂ log p / ∂b)² = p (1 − p) in closed form."""
    learner = taught("ewc", backbone, images=60)
    data = STREAM[1].train
    p = learner.scores(data.images).softmax(1)
    expected = (p * (1 - p)).mean(0)
    estimated = learner.tensors["fisher.1.bias"]
    assert float((estimated - expected).abs().max()) < 0.05
    assert float(estimated.max()) > 0


def test_online_ewc_does_not_grow_with_tasks(backbone: Backbone) -> None:
    one = made("online_ewc", backbone)
    one.learn(STREAM[0].train)
    two = taught("online_ewc", backbone)
    new_rows = 2 * 2 * 97  # two classes, in the head and in the Fisher information
    assert two.footprint().parameters == one.footprint().parameters + new_rows


def test_owm_preserves_logits_of_old_images(backbone: Backbone) -> None:
    """A smaller α preserves them better."""
    images, drifts = STREAM[0].train.images, []
    for alpha in (1e-4, 1e4):
        learner = BASELINES["owm"](backbone, SETTINGS, alpha=alpha)
        learner.learn(STREAM[0].train)
        before = learner.scores(images)
        learner.learn(STREAM[1].train)
        drifts.append(float((learner.scores(images)[:, :2] - before).norm()))
    assert drifts[0] < 0.1 * drifts[1]


def test_side_classifiers_of_muc_agree_on_their_task_only(backbone: Backbone) -> None:
    learner = MUC(backbone, replace(SETTINGS, epochs=20))
    data = STREAM[0].train
    learner.learn(data)
    weight, bias = learner.tensors["sides.weight"], learner.tensors["sides.bias"]
    rotated = RotatedImages(backbone, data.images)
    features = learner.features(TokenCache(backbone, rotated, 0), len(rotated))
    probabilities = (features @ weight.mT + bias[:, None]).softmax(2)
    spread = (probabilities.amax(0) - probabilities.amin(0)).amax(1)
    assert spread[: len(data)].mean() < 0.5 * spread[len(data) :].mean()
