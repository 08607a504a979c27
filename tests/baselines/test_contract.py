"""The contract of every learner, and what baselines have beyond it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import make_task
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES, Baseline
from remembering.baselines.features import FeatureCache
from remembering.config import Settings
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.evaluation.metrics import accuracy
from remembering.experiments.published import TABLE_1
from remembering.learner import Answers, Learner
from remembering.model import RememberingTransformer

from .example import DIGITS, SETTINGS, STREAM, made, same, taught

pytestmark = pytest.mark.integration

OURS = Settings(epochs=2, batch_size=16, lr=3e-3, rank=2)


def new(name: str, backbone: Backbone) -> Learner:
    """Return a learner before its first task."""
    return RememberingTransformer(backbone, OURS) if name == "ours" else made(name, backbone)


def numbers(answers: Answers) -> Tensor:
    """Return the scores or probabilities behind the labels."""
    found = answers.scores if not hasattr(answers, "probabilities") else answers.probabilities
    assert isinstance(found, Tensor)
    return found


@pytest.fixture(params=[*BASELINES, "ours"], scope="module")
def name(request: pytest.FixtureRequest) -> str:
    result: str = request.param
    return result


@pytest.fixture(scope="module")
def learner(name: str, backbone: Backbone) -> Learner:
    """Return a learner after two tasks."""
    result = new(name, backbone)
    for data in STREAM:
        result.learn(data.train)
    return result


class TestLearner:
    def test_learns_the_last_task(self, learner: Learner) -> None:
        test = STREAM[-1].test
        assert accuracy(learner.predict(test.images).labels, test.labels) > 0.8
        assert learner.learned == 2

    def test_an_answer_does_not_depend_on_the_batch(self, learner: Learner) -> None:
        images = STREAM[0].test.images
        answers = learner.predict(images).labels
        assert learner.predict(images.flip(0)).labels == answers[::-1]
        assert learner.predict(images[3:4]).labels == answers[3:4]
        mixed = torch.cat([STREAM[1].test.images, images])
        assert learner.predict(mixed).labels[-len(images) :] == answers

    def test_saving_and_loading_changes_no_answer(
        self, learner: Learner, backbone: Backbone, tmp_path: Path
    ) -> None:
        learner.save(tmp_path / "state")
        loaded = type(learner).load(tmp_path / "state", backbone=backbone)
        assert (loaded.learned, loaded.footprint()) == (learner.learned, learner.footprint())
        for data in STREAM:
            images = data.test.images
            assert torch.equal(numbers(loaded.predict(images)), numbers(learner.predict(images)))
        assert not list(tmp_path.glob(".*"))

    def test_learning_further_after_loading_gives_the_same_bits(
        self, name: str, learner: Learner, backbone: Backbone, tmp_path: Path
    ) -> None:
        images = STREAM[0].test.images
        half = new(name, backbone)
        half.learn(STREAM[0].train)
        half.predict(images)
        half.save(tmp_path / "state")
        loaded = type(half).load(tmp_path / "state", backbone=backbone)
        loaded.learn(STREAM[1].train)
        assert torch.equal(numbers(loaded.predict(images)), numbers(learner.predict(images)))

    def test_rejects_a_task_that_cannot_be_learned(self, learner: Learner) -> None:
        images = STREAM[0].test.images
        before = numbers(learner.predict(images))
        with pytest.raises(RememberingError, match="only the class"):
            learner.learn(make_task(3, (8,)))
        with pytest.raises(RememberingError, match="labels"):
            learner.learn(make_task(3, ("x", "y")))
        assert learner.learned == 2
        assert torch.equal(numbers(learner.predict(images)), before)

    def test_needs_a_task_before_it_predicts(self, name: str, backbone: Backbone) -> None:
        with pytest.raises(RememberingError, match="not learned a task"):
            new(name, backbone).predict(STREAM[0].test.images)

    def test_a_label_may_recur_in_a_later_task(self, name: str, backbone: Backbone) -> None:
        """Labels are strings; the second task has one of the first and a new one."""
        words = ("nought", "one", "two")
        first, second = (
            Task(name, data.train.images, [words[i + shift] for i in data.train.targets.tolist()])
            for shift, (name, data) in enumerate(zip(("first", "second"), STREAM, strict=True))
        )
        learner = new(name, backbone)
        learner.learn(first)
        learner.learn(second)
        reached = [
            accuracy(
                learner.predict(data.test.images).labels,
                [words[i + shift] for i in data.test.targets.tolist()],
            )
            for shift, data in enumerate(STREAM)
        ]
        assert sum(reached) / 2 > 0.6  # chance is a third; some methods forget

    def test_all_tasks_may_have_the_same_labels(self, name: str, backbone: Backbone) -> None:
        """As in permuted digits."""
        learner = new(name, backbone)
        learner.learn(STREAM[0].train)
        flipped = Task("flipped", STREAM[0].train.images.flip(3), STREAM[0].train.labels)
        learner.learn(flipped)
        test = STREAM[0].test
        both = torch.cat([test.images, test.images.flip(3)])
        assert accuracy(learner.predict(both).labels, test.labels * 2) > 0.6


@pytest.fixture(params=BASELINES, scope="module")
def baseline(request: pytest.FixtureRequest, backbone: Backbone) -> Baseline:
    """Return a baseline after two tasks."""
    result = made(request.param, backbone)
    for data in STREAM:
        result.learn(data.train)
    return result


class TestBaseline:
    def test_is_documented(self, baseline: Baseline) -> None:
        assert BASELINES[baseline.name] is type(baseline)
        assert baseline.title
        assert len(baseline.reference) > 20
        assert len(baseline.stores) > 10
        assert baseline.published is None or baseline.published in TABLE_1
        assert "\n" in (type(baseline).__doc__ or "")

    def test_footprint_counts_the_state(self, baseline: Baseline) -> None:
        tensors = baseline.state_dict().values()
        footprint = baseline.footprint()
        assert footprint.bytes == sum(t.numel() * t.element_size() for t in tensors) > 0
        assert footprint.parameters == sum(
            t.numel() for t in tensors if t.dtype in (torch.float16, torch.float32, torch.float64)
        )
        assert footprint.trained == baseline.trained <= sum(t.numel() for t in tensors)

    def test_a_cache_changes_no_bit(
        self, baseline: Baseline, backbone: Backbone, tmp_path: Path
    ) -> None:
        path, cache = tmp_path / "half.safetensors", FeatureCache()
        images = STREAM[0].test.images
        half = made(baseline.name, backbone)
        half.cache = cache
        half.learn(STREAM[0].train)
        half.predict(images)
        half.save(path)
        loaded = type(half).load(path, backbone=backbone, cache=cache)
        loaded.learn(STREAM[1].train)
        assert same(loaded, baseline)
        assert torch.equal(loaded.scores(images), baseline.scores(images))
        assert (loaded.options, loaded.settings) == (baseline.options, baseline.settings)

    def test_a_task_that_fails_changes_nothing(
        self, baseline: Baseline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before, classes = dict(baseline.state_dict()), baseline.classes

        def fail(*_: object) -> None:
            baseline.tensors = {}
            baseline.extra_state["half"] = True
            raise ZeroDivisionError

        monkeypatch.setattr(baseline, "learn_task", fail)
        with pytest.raises(ZeroDivisionError):
            baseline.learn(DIGITS[2].train)
        assert (baseline.classes, baseline.learned) == (classes, 2)
        assert all(torch.equal(baseline.state_dict()[key], before[key]) for key in before)
        assert "half" not in baseline.extra_state


class TestFiles:
    @pytest.fixture
    def learner(self, backbone: Backbone) -> Baseline:
        return taught("ncm", backbone)

    def test_damage_is_detected(
        self, learner: Baseline, backbone: Backbone, tmp_path: Path
    ) -> None:
        path = tmp_path / "state"
        learner.save(path)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(RememberingError, match="checksum"):
            BASELINES["ncm"].load(path, backbone=backbone)
        path.write_bytes(whole[:-1])
        with pytest.raises(RememberingError, match="cannot be used"):
            BASELINES["ncm"].load(path, backbone=backbone)

    def test_another_method_or_backbone_is_rejected(
        self, learner: Baseline, backbone: Backbone, checkpoints: dict[str, Path], tmp_path: Path
    ) -> None:
        learner.save(tmp_path / "state")
        with pytest.raises(RememberingError, match="it holds ncm"):
            BASELINES["slda"].load(tmp_path / "state", backbone=backbone)
        with pytest.raises(RememberingError, match="another backbone"):
            BASELINES["ncm"].load(tmp_path / "state", backbone=Backbone.load(checkpoints["vit"]))


def test_an_unknown_option_is_rejected(backbone: Backbone) -> None:
    with pytest.raises(RememberingError, match="no option 'strenght'; its options are strength"):
        BASELINES["ewc"](backbone, SETTINGS, strenght=1)
