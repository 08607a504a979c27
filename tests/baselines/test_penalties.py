"""Methods that hold an adapter where the past needs it."""

from __future__ import annotations

from dataclasses import replace

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES
from remembering.baselines.muc import MUC
from remembering.baselines.rotations import Rotated
from remembering.inference.token_cache import TokenCache

from .example import SETTINGS, STREAM, made, taught


def test_ewc_stays_where_it_was_if_strong_enough(backbone: Backbone) -> None:
    """The more strength, the less parameters that mattered move."""
    moved = []
    for strength in (0.0, 1e5):
        learner = taught("ewc", backbone, strength=strength)
        weight = learner.tensors["fisher.0.a"]
        change = learner.tensors["adapter.a"] - learner.tensors["at.0.a"]
        moved.append(float((weight * change.square()).sum()))
    assert moved[1] < 0.5 * moved[0]


def test_fisher_information_of_a_head_alone(backbone: Backbone) -> None:
    """For the bias of a softmax, E (∂ log p / ∂b)² = p (1 − p): known without a backward pass."""
    learner = taught("ewc", backbone, images=60)
    data = STREAM[1].train
    p = learner.scores(data.images).softmax(1)
    expected = (p * (1 - p)).mean(0)
    found = learner.tensors["fisher.1.bias"]
    assert float((found - expected).abs().max()) < 0.05
    assert float(found.max()) > 0


def test_online_ewc_does_not_grow_with_tasks(backbone: Backbone) -> None:
    one = made("online_ewc", backbone)
    one.learn(STREAM[0].train)
    two = taught("online_ewc", backbone)
    new_rows = 2 * 2 * 97  # two classes, in the head and in what it mattered
    assert two.footprint().parameters == one.footprint().parameters + new_rows


def test_owm_leaves_what_it_said_of_old_images(backbone: Backbone) -> None:
    """The more so, the smaller α."""
    images, drifts = STREAM[0].train.images, []
    for alpha in (1e-4, 1e4):
        learner = BASELINES["owm"](backbone, SETTINGS, alpha=alpha)
        learner.learn(STREAM[0].train)
        before = learner.scores(images)
        learner.learn(STREAM[1].train)
        drifts.append(float((learner.scores(images)[:, :2] - before).norm()))
    assert drifts[0] < 0.1 * drifts[1]


def test_side_classifiers_agree_on_their_task_alone(backbone: Backbone) -> None:
    learner = MUC(backbone, replace(SETTINGS, epochs=20))
    data = STREAM[0].train
    learner.learn(data)
    weight, bias = learner.tensors["sides.weight"], learner.tensors["sides.bias"]
    turned = Rotated(backbone, data.images)
    features = learner.features(TokenCache(backbone, turned, 0), len(turned))
    prediction = (features @ weight.mT + bias[:, None]).softmax(2)
    spread = (prediction.amax(0) - prediction.amin(0)).amax(1)
    assert spread[: len(data)].mean() < 0.5 * spread[len(data) :].mean()
