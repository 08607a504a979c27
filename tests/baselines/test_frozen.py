"""Tests of methods on features of the frozen backbone."""

from __future__ import annotations

import pytest
import torch

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES
from remembering.baselines.bir import Network
from remembering.baselines.features import FeatureCache, frozen_features
from remembering.data.task import Task

from .example import SETTINGS, STREAM, made, taught


def test_nearest_class_mean_stores_class_means(backbone: Backbone) -> None:
    learner = taught("ncm", backbone)
    data = STREAM[1].train
    features = frozen_features(backbone, data.images, backbone.depth)
    for label in data.classes:
        rows = torch.tensor([other == label for other in data.labels])
        found = learner.tensors["means"][learner.classes.index(label)]
        torch.testing.assert_close(found, features[rows].mean(0))


def test_streaming_lda_estimates_means_and_covariance(backbone: Backbone) -> None:
    """Two Gaussian classes with known parameters, learned in two parts."""
    rng = torch.Generator().manual_seed(0)
    mix, centres = torch.randn(4, 4, generator=rng), torch.tensor([[3.0] * 4, [-2.0] * 4])
    targets = torch.arange(4000) % 2
    features = centres[targets] + torch.randn(4000, 4, generator=rng) @ mix
    learner = BASELINES["slda"](backbone, SETTINGS)
    learner.classes = (0, 1)
    for part in (slice(0, 1000), slice(1000, 4000)):
        learner.learn_features(features[part], targets[part])  # type: ignore[attr-defined]
    expected = mix.mT @ mix
    estimated = learner.tensors["covariance"]
    assert float((estimated - expected).norm() / expected.norm()) < 0.1
    assert float((learner.tensors["means"] - centres).abs().max()) < 0.2
    assert learner.tensors["counts"].tolist() == [2000, 2000]


def test_ranpac_does_not_depend_on_task_order(backbone: Backbone) -> None:
    forward = taught("ranpac_frozen", backbone)
    backward = made("ranpac_frozen", backbone)
    for data in reversed(STREAM):
        backward.learn(data.train)
    grams = [found.tensors["factor"].mT @ found.tensors["factor"] for found in (forward, backward)]
    torch.testing.assert_close(*grams, rtol=1e-4, atol=1)


def test_bir_generates_features_of_its_classes(backbone: Backbone) -> None:
    """Features generated for a class are nearest to the mean of its real features."""
    learner = taught("bir", backbone)
    network = Network(learner.tensors, learner.gates(torch.zeros(1), 4))  # type: ignore[attr-defined]
    means = []
    for label in learner.classes:
        data = next(data.train for data in STREAM if label in data.train.classes)
        rows = torch.tensor([other == label for other in data.labels])
        means.append(frozen_features(backbone, data.images[rows], backbone.depth).mean(0))
    classes = torch.arange(4).repeat(20)
    generated = network.generate(classes, torch.Generator().manual_seed(0))
    nearest = torch.cdist(generated, torch.stack(means)).argmin(1)
    assert float((nearest == classes).float().mean()) > 0.7


class TestFeatureCache:
    def test_methods_share_features(self, backbone: Backbone) -> None:
        cache = FeatureCache()
        first = BASELINES["ncm"](backbone, SETTINGS, cache)
        first.learn(STREAM[0].train)
        assert cache.saved == 0
        second = BASELINES["slda"](backbone, SETTINGS, cache)
        second.learn(STREAM[0].train)
        assert cache.saved > 0

    @pytest.mark.parametrize("name", ["clom", "fetril", "ranpac"])
    def test_outputs_unchanged_by_later_tasks_are_computed_once(
        self, name: str, backbone: Backbone
    ) -> None:
        learner, images = made(name, backbone), STREAM[0].test.images
        learner.cache = FeatureCache()
        learner.learn(STREAM[0].train)
        learner.predict(images)
        assert learner.cache.saved == 0
        learner.learn(STREAM[1].train)
        predictions = learner.predict(images).labels
        assert (saved := learner.cache.saved) > 0
        assert learner.predict(images).labels == predictions
        assert learner.cache.saved > saved

    def test_is_bounded_and_distinguishes_depths_and_images(self, backbone: Backbone) -> None:
        images = STREAM[0].test.images
        cache = FeatureCache(cache_bytes=len(images) * 96 * 4)
        deep = cache.features(backbone, images, 6)
        assert not torch.equal(cache.features(backbone, images, 3), deep)
        assert cache.bytes <= cache.cache_bytes
        assert torch.equal(cache.features(backbone, images, 6), deep)
        assert not torch.equal(cache.features(backbone, images.flip(0), 6), deep)


def test_bir_has_a_prior_per_label_and_task(backbone: Backbone) -> None:
    learner = made("bir", backbone)
    for name in ("first", "again"):
        data = STREAM[0].train
        learner.learn(Task(name, data.images, data.labels))
    assert len(learner.classes) == len(learner.tensors["bias"]) == 2
    assert len(learner.tensors["prior.mean"]) == 4
