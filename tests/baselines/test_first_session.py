"""Methods that train their adapter on the first task have the adapter of the default model."""

from __future__ import annotations

import pytest
import torch

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES, Baseline, first_session
from remembering.baselines.features import FeatureCache
from remembering.baselines.first_session import FirstSession, ModelFeatures
from remembering.config import Settings
from remembering.data.streams.stream import Stream
from remembering.experiments.methods import METHODS, Context
from remembering.experiments.spec import Experiment
from remembering.inference.classify import adapter_outputs
from remembering.model import RememberingTransformer

from .example import DIGITS, QUICK, STREAM, made

SETTINGS = Settings(epochs=2, rank=2, lr=3e-3)
NAMES = [name for name, kind in BASELINES.items() if issubclass(kind, FirstSession)]


@pytest.fixture(scope="module")
def ours(backbone: Backbone) -> RememberingTransformer:
    """The default model after one task."""
    model = RememberingTransformer(backbone, SETTINGS)
    model.learn(STREAM[0].train)
    return model


@pytest.fixture(scope="module")
def cache() -> FeatureCache:
    return FeatureCache()


def learner(name: str, backbone: Backbone, cache: FeatureCache) -> FirstSession:
    result = BASELINES[name](backbone, SETTINGS, cache, **QUICK.get(name, {}))
    assert isinstance(result, FirstSession)
    result.learn(STREAM[0].train)
    return result


def test_these_are_the_methods() -> None:
    assert NAMES == [
        "ncm-our-features",
        "slda-our-features",
        "ranpac",
        "ranpac-our-features",
        "fetril",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_adapter_and_the_features_are_those_of_the_default_model(
    name: str, backbone: Backbone, ours: RememberingTransformer, cache: FeatureCache
) -> None:
    found, images = learner(name, backbone, cache), STREAM[0].test.images
    expected = ours.state.adapters[0]
    assert torch.equal(found.adapter.a, expected.a)
    assert torch.equal(found.adapter.b, expected.b)
    if isinstance(found, ModelFeatures):
        features = adapter_outputs(ours.state, backbone, images, 0).plain
        assert torch.equal(found.features(images), features)
    else:
        assert found.features(images).shape == (len(images), backbone.dim)


def test_training_and_features_are_shared(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = FeatureCache()
    learner("slda-our-features", backbone, cache)
    assert cache.saved == 0
    monkeypatch.setattr(first_session, "new_adapter", None)  # fails if anything is trained
    monkeypatch.setattr(first_session, "deep_task_features", None)  # or read
    learner("ncm-our-features", backbone, cache)
    assert cache.saved > 0, "the time is charged to both"


def test_later_tasks_change_no_adapter(backbone: Backbone) -> None:
    learner = made("ranpac", backbone)
    learner.learn(DIGITS[0].train)
    before = learner.tensors["adapter.a"], learner.tensors["adapter.b"]
    learner.learn(DIGITS[1].train)
    assert torch.equal(learner.tensors["adapter.a"], before[0])
    assert torch.equal(learner.tensors["adapter.b"], before[1])


@pytest.mark.parametrize("name", ["ranpac", "fetril", "ranpac_frozen", "ewc", "joint"])
def test_an_experiment_gives_them_the_settings_of_its_model(name: str, backbone: Backbone) -> None:
    published = Settings.paper(rank=3, epochs=7)
    experiment = Experiment(learning=SETTINGS, published=published)
    context = Context(experiment, Stream("digits", STREAM), backbone, FeatureCache())
    found = METHODS[name].new(context, QUICK.get(name, {}))
    assert isinstance(found, Baseline)
    assert found.settings == (SETTINGS if name in NAMES else published)
