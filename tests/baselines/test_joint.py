"""Joint training: the paper's IID oracle, a tuned one, and one with the Gaussian classifier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES, Baseline, joint
from remembering.baselines.features import FeatureCache
from remembering.config import Settings
from remembering.errors import RememberingError
from remembering.learning import classes
from remembering.model import RememberingTransformer
from remembering.runtime.progress import Progress, Step

from .example import QUICK, SETTINGS, STREAM, made

pytestmark = pytest.mark.integration


class Watch(Progress):
    """Counts the images of training steps."""

    def __init__(self) -> None:
        self.seen = 0

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Step]:
        def step(advance: int, note: str = "") -> None:
            self.seen += advance

        yield step


@pytest.mark.parametrize(
    ("name", "epochs"), [("joint", 2 * SETTINGS.epochs), ("joint-tuned", 4), ("joint-gaussian", 4)]
)
def test_passes_over_all_data(name: str, epochs: int, backbone: Backbone) -> None:
    """The oracle has `epochs` times the number of tasks, in the paper 50 or 200; others an option.

    The quick options have 4 epochs.
    """
    learner, watch = made(name, backbone), Watch()
    for data in STREAM:
        learner.learn(data.train, progress=watch)
    learner.finalize()
    assert watch.seen == epochs * sum(len(data.train) for data in STREAM)


def test_only_the_oracle_has_the_papers_settings(backbone: Backbone) -> None:
    assert made("joint", backbone).settings == SETTINGS
    tuned = made("joint-tuned", backbone, Settings.paper(seed=5)).settings
    expected = Settings(rank=2, epochs=4, lr=3e-3, augment="shift", seed=5)
    assert tuned == expected.resolved(backbone.depth)
    assert (tuned.schedule, tuned.batch_size) == ("cosine", 32)
    flips = BASELINES["joint-tuned"](backbone, SETTINGS)
    assert (flips.settings.augment, flips.settings.rank) == ("crop", 8)


def learned(name: str, backbone: Backbone, cache: FeatureCache | None = None) -> Baseline:
    learner = BASELINES[name](backbone, SETTINGS, cache, **QUICK[name])
    for data in STREAM:
        learner.learn(data.train)
    learner.finalize()
    return learner


def test_the_gaussian_variant_shares_the_training_of_the_tuned_one(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = FeatureCache()
    tuned = learned("joint-tuned", backbone, cache)
    assert cache.saved == 0
    apart = learned("joint-gaussian", backbone)
    monkeypatch.setattr(joint, "train", None)  # fails if anything is trained
    shared = learned("joint-gaussian", backbone, cache)
    assert cache.saved > 0, "the time of the training is charged to both"
    for key in ("adapter.a", "adapter.b"):
        assert torch.equal(shared.tensors[key], tuned.tensors[key])
    for key, value in apart.tensors.items():
        assert torch.equal(shared.tensors[key], value)


def test_other_labels_are_another_training(backbone: Backbone) -> None:
    cache = FeatureCache()
    learned("joint-tuned", backbone, cache)
    other = BASELINES["joint-tuned"](backbone, SETTINGS, cache, **QUICK["joint-tuned"])
    data = STREAM[0].train
    for task in (data, STREAM[1].train):
        swapped = [task.classes[1 - i] for i in task.targets.tolist()]
        other.learn(type(task)(task.name, task.images, swapped))
    other.finalize()
    assert cache.saved == 0


@pytest.mark.parametrize("flips", [False, True])
def test_the_gaussian_variant_classifies_as_the_default_model(
    flips: bool, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an untrained adapter in both, all probabilities are the same."""
    monkeypatch.setattr(classes, "flips_preserve_labels", lambda *_: flips)

    def untrained(backbone: Backbone, adapter: Any, head: Any, *_: Any) -> Any:
        return adapter, head

    monkeypatch.setattr(joint, "train", untrained)
    ours = RememberingTransformer(backbone, Settings(adapters="first", epochs=0))
    options = {"augment": 2.0 if flips else 1.0}
    learner = BASELINES["joint-gaussian"](backbone, Settings(), **options)
    for data in STREAM:
        ours.learn(data.train)
        learner.learn(data.train)
    images = torch.cat([data.test.images for data in STREAM])
    expected = ours.predict(images)
    found = learner.predict(images)
    assert found.classes == expected.classes
    assert found.labels == expected.labels
    torch.testing.assert_close(found.scores.softmax(1).float(), expected.probabilities)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1.5}, r"joint-tuned\.rank = 1\.5 must be a whole number"),
        ({"augment": 3}, r"augment = 3 must be 0 \(none\), 1 \(shifts\)"),
        ({"epochs": 0}, "epochs = 0 must be at least 1"),
        ({"rank": 0}, "rank = 0 must be at least 1"),
    ],
)
def test_invalid_options_are_rejected(
    options: dict[str, float], message: str, backbone: Backbone
) -> None:
    with pytest.raises(RememberingError, match=message):
        BASELINES["joint-tuned"](backbone, SETTINGS, **options)
