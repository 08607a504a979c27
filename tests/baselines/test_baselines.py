"""Every baseline keeps this contract."""

from __future__ import annotations

import pytest
from conftest import make_task

from remembering.backbone import Backbone
from remembering.baselines import BASELINES, Baseline
from remembering.baselines.base import accuracy
from remembering.config import Settings
from remembering.errors import RememberingError
from remembering.tasks.sources import load
from remembering.tasks.split import split
from remembering.tasks.stream import limit

SETTINGS = Settings(epochs=8, batch_size=16, lr=3e-3, rank=2)
STREAM = split(limit(load("digits"), 40, 20, seed=0), 5, seed=0).tasks[:2]


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return Backbone.load("bundled")


def taught(name: str, backbone: Backbone) -> Baseline:
    learner = BASELINES[name](backbone, SETTINGS)
    for data in STREAM:
        learner.learn(data.train)
    return learner


@pytest.fixture(params=BASELINES, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    result: str = request.param
    return result


@pytest.fixture(scope="module")
def learner(name: str, backbone: Backbone) -> Baseline:
    return taught(name, backbone)


def test_learns_the_last_task(learner: Baseline) -> None:
    test = STREAM[-1].test
    assert accuracy(learner.predict(test.images), test.labels) > 0.85


def test_does_not_depend_on_batch_order(learner: Baseline) -> None:
    images = STREAM[0].test.images
    assert learner.predict(images.flip(0)) == learner.predict(images)[::-1]
    assert learner.predict(images[3:4]) == learner.predict(images)[3:4]


def test_is_repeatable(name: str, learner: Baseline, backbone: Backbone) -> None:
    again = taught(name, backbone)
    for data in STREAM:
        assert again.predict(data.test.images) == learner.predict(data.test.images)


def test_says_what_it_keeps(learner: Baseline) -> None:
    footprint = learner.footprint()
    assert footprint.adapters == 4 * 6 * 2 * 96 * 2
    assert footprint.heads == 4 * 97


def test_refuses_a_task_that_cannot_be_learned(learner: Baseline) -> None:
    with pytest.raises(RememberingError, match="only the class"):
        learner.learn(make_task(3, ("x",)))


def test_joint_training_keeps_what_fine_tuning_forgets(backbone: Backbone) -> None:
    test = STREAM[0].test
    kept = {
        name: accuracy(taught(name, backbone).predict(test.images), test.labels)
        for name in ("finetune", "joint")
    }
    assert kept["finetune"] < 0.5
    assert kept["joint"] > 0.85
