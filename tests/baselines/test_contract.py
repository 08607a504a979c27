"""Every rival keeps this contract."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from remembering.report.published import TABLE_1
from support import make_task

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES, LEFT_OUT, Baseline
from remembering.baselines.base import accuracy
from remembering.baselines.features import FeatureCache
from remembering.data.task import Task
from remembering.errors import RememberingError

from .example import DIGITS, SETTINGS, STREAM, made, same, taught


@pytest.fixture(params=BASELINES, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    result: str = request.param
    return result


@pytest.fixture(scope="module")
def learner(name: str, backbone: Backbone) -> Baseline:
    return taught(name, backbone)


class TestContract:
    def test_learns_the_last_task(self, learner: Baseline) -> None:
        test = STREAM[-1].test
        assert accuracy(learner.predict(test.images), test.labels) > 0.8
        assert set(learner.classes) == {c for data in STREAM for c in data.train.classes}

    def test_does_not_depend_on_the_batch(self, learner: Baseline) -> None:
        images = STREAM[0].test.images
        answers = learner.predict(images)
        assert learner.predict(images.flip(0)) == answers[::-1]
        assert learner.predict(images[3:4]) == answers[3:4]
        mixed = torch.cat([STREAM[1].test.images, images])
        assert learner.predict(mixed)[-len(images) :] == answers

    def test_saves_and_loads(self, learner: Baseline, backbone: Backbone, tmp_path: Path) -> None:
        path = tmp_path / "state.safetensors"
        learner.save(path)
        again = type(learner).load(path, backbone)
        assert same(again, learner)
        assert (again.classes, again.extra_state) == (learner.classes, learner.extra_state)
        assert (again.options, again.settings) == (learner.options, learner.settings)
        for data in STREAM:
            assert again.predict(data.test.images) == learner.predict(data.test.images)
        assert not list(tmp_path.glob(".*"))

    def test_is_repeatable_and_goes_on_after_loading(
        self, name: str, learner: Baseline, backbone: Backbone, tmp_path: Path
    ) -> None:
        """Another one, half-way asked, saved and loaded, ends with the same bits; so it does with
        a cache, and answers the same."""
        path, cache = tmp_path / "half.safetensors", FeatureCache()
        images = STREAM[0].test.images
        half = made(name, backbone)
        half.cache = cache
        half.learn(STREAM[0].train)
        half.predict(images)
        half.save(path)
        loaded = type(half).load(path, backbone, cache)
        loaded.learn(STREAM[1].train)
        assert same(loaded, learner)
        assert torch.equal(loaded.scores(images), learner.scores(images))

    def test_counts_what_it_keeps(self, learner: Baseline) -> None:
        tensors = learner.state_dict().values()
        footprint = learner.footprint()
        assert footprint.bytes == sum(t.numel() * t.element_size() for t in tensors) > 0
        assert footprint.parameters == sum(
            t.numel() for t in tensors if t.dtype in (torch.float16, torch.float32, torch.float64)
        )
        assert learner.trained <= sum(t.numel() for t in tensors)

    def test_says_what_it_is(self, name: str, learner: Baseline) -> None:
        assert learner.name == name
        assert learner.title
        assert len(learner.reference) > 20
        assert len(learner.stores) > 10
        assert learner.published is None or learner.published in TABLE_1
        assert "\n" in (type(learner).__doc__ or "")

    def test_labels_that_come_back(self, name: str, backbone: Backbone) -> None:
        """Strings, and a second task that repeats one of them and brings a new one."""
        words = ("nought", "one", "two")
        first, second = (
            Task(name, data.train.images, [words[i + shift] for i in data.train.targets.tolist()])
            for shift, (name, data) in enumerate(zip(("first", "second"), STREAM, strict=True))
        )
        learner = made(name, backbone)
        learner.learn(first)
        learner.learn(second)
        assert learner.classes == words
        reached = [
            accuracy(
                learner.predict(data.test.images),
                [words[i + shift] for i in data.test.targets.tolist()],
            )
            for shift, data in enumerate(STREAM)
        ]
        assert sum(reached) / 2 > 0.6  # chance is a third; some forget, and some will not learn

    def test_the_same_labels_again(self, name: str, backbone: Backbone) -> None:
        """As in permuted digits: every task has all the classes."""
        learner = made(name, backbone)
        learner.learn(STREAM[0].train)
        mirrored = Task("mirrored", STREAM[0].train.images.flip(3), STREAM[0].train.labels)
        learner.learn(mirrored)
        assert learner.classes == STREAM[0].train.classes
        test = STREAM[0].test
        both = torch.cat([test.images, test.images.flip(3)])
        assert accuracy(learner.predict(both), test.labels * 2) > 0.6

    def test_refuses_a_task_that_cannot_be_learned(self, learner: Baseline) -> None:
        before, classes = dict(learner.state_dict()), learner.classes
        with pytest.raises(RememberingError, match="only the class"):
            learner.learn(make_task(3, (8,)))
        with pytest.raises(RememberingError, match="use one kind"):
            learner.learn(make_task(3, ("x", "y")))
        assert learner.classes == classes
        assert all(torch.equal(learner.state_dict()[key], before[key]) for key in before)

    def test_a_task_that_fails_leaves_no_trace(
        self, learner: Baseline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before, classes = dict(learner.state_dict()), learner.classes

        def fail(*_: object) -> None:
            learner.tensors = {}
            learner.extra_state["half"] = True
            raise ZeroDivisionError

        monkeypatch.setattr(learner, "learn_task", fail)
        with pytest.raises(ZeroDivisionError):
            learner.learn(DIGITS[2].train)
        assert (learner.classes, learner.learned) == (classes, 2)
        assert all(torch.equal(learner.state_dict()[key], before[key]) for key in before)
        assert "half" not in learner.extra_state

    def test_asks_for_a_task_first(self, name: str, backbone: Backbone) -> None:
        with pytest.raises(RememberingError, match="learned no task"):
            made(name, backbone).predict(STREAM[0].test.images)


class TestFiles:
    @pytest.fixture
    def learner(self, backbone: Backbone) -> Baseline:
        return taught("ncm", backbone)

    def test_damage_is_noticed(self, learner: Baseline, backbone: Backbone, tmp_path: Path) -> None:
        path = tmp_path / "state"
        learner.save(path)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(RememberingError, match="checksum"):
            BASELINES["ncm"].load(path, backbone)
        path.write_bytes(whole[:-1])
        with pytest.raises(RememberingError, match="cannot be used"):
            BASELINES["ncm"].load(path, backbone)

    def test_of_another_method_or_backbone(
        self, learner: Baseline, backbone: Backbone, checkpoints: dict[str, Path], tmp_path: Path
    ) -> None:
        learner.save(tmp_path / "state")
        with pytest.raises(RememberingError, match="it holds ncm"):
            BASELINES["slda"].load(tmp_path / "state", backbone)
        with pytest.raises(RememberingError, match="another backbone"):
            BASELINES["ncm"].load(tmp_path / "state", Backbone.load(checkpoints["vit"]))


def test_an_option_that_a_method_does_not_have(backbone: Backbone) -> None:
    with pytest.raises(RememberingError, match="no option 'strenght'; its options are strength"):
        BASELINES["ewc"](backbone, SETTINGS, strenght=1)


def test_a_method_is_carried_over_or_left_out() -> None:
    assert not BASELINES.keys() & LEFT_OUT.keys()
