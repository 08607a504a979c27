"""The default model: tasks join familiar adapters, and class Gaussians answer in one pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import TWO_LEVEL, learned, make_task, tensors
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.config import ClassifierSettings
from remembering.data.sources import load
from remembering.data.streams.split import split
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.encoding import FlippedImages
from remembering.inference.predict import layers_run
from remembering.learning import classes
from remembering.model import RememberingTransformer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def digits() -> list[Task]:
    return [task.train for task in split(load("digits"), 5, seed=0).tasks]


@pytest.fixture(scope="module")
def model(digits: list[Task]) -> RememberingTransformer:
    model = RememberingTransformer.from_backbone("bundled", epochs=2)
    for task in digits[:3]:
        model.learn(task)
    return model


def inverted(tasks: list[Task], name: str) -> Task:
    """The same digits, dark on bright and turned upside down: another domain."""
    images = torch.cat([255 - torch.as_tensor(task.images).flip(2) for task in tasks])
    return Task(name, images, [label for task in tasks for label in task.labels])


def test_tasks_of_one_domain_share_an_adapter_and_another_domain_gets_its_own(
    model: RememberingTransformer, digits: list[Task]
) -> None:
    assert [task.adapter for task in model.tasks] == [0, 0, 0]
    other = RememberingTransformer(model.backbone, state=model.state)
    other.learn(inverted(digits[3:], "inverted"))
    assert [task.adapter for task in other.tasks] == [0, 0, 0, 3]
    assert len(model.tasks) == 3, "the first model is unchanged"


def test_a_joining_task_trains_nothing(
    model: RememberingTransformer, digits: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("a familiar task must not train an adapter")

    monkeypatch.setattr(classes, "train", fail)
    other = RememberingTransformer(model.backbone, state=model.state)
    other.learn(digits[3])
    assert other.tasks[-1].adapter == 0


def test_single_images_are_answered(model: RememberingTransformer) -> None:
    stream = split(load("digits"), 5, seed=0).tasks[:3]
    for task in stream:
        prediction = model.predict(task.test.images)
        right = [a == b for a, b in zip(prediction.labels, task.test.labels, strict=True)]
        assert sum(right) / len(right) > 0.95
        for label, name in zip(prediction.labels, prediction.tasks, strict=True):
            assert label in model.state.task(name).classes, "label and task agree"


def test_false_alarms_come_at_about_the_requested_rate(model: RememberingTransformer) -> None:
    known = torch.cat([t.test.images for t in split(load("digits"), 5, seed=0).tasks[:3]])
    alarms = model.predict(known, false_alarm_rate=0.05).unknown
    assert alarms is not None
    assert 0.0 < float(alarms.float().mean()) < 0.11
    noise = torch.randint(0, 256, (100, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    unknown = model.predict(noise.to(torch.uint8), false_alarm_rate=0.05).unknown
    assert unknown is not None
    assert float(unknown.float().mean()) > 0.9


@settings(max_examples=10)
@given(order=st.permutations(range(9)), size=st.integers(1, 9))
def test_an_answer_does_not_depend_on_the_batch(
    order: list[int], size: int, model: RememberingTransformer, digits: list[Task]
) -> None:
    images = torch.cat([torch.as_tensor(task.images)[:3] for task in digits[:3]])
    whole = model.predict(images, false_alarm_rate=0.05)
    rows = [list(order[i : i + size]) for i in range(0, 9, size)]
    parts = [model.predict(images[some], false_alarm_rate=0.05) for some in rows]
    assert [x for part in parts for x in part.labels] == [whole.labels[i] for i in order]
    probabilities = torch.cat([part.probabilities for part in parts])
    torch.testing.assert_close(probabilities, whole.probabilities[list(order)])


def test_the_second_view_is_used_for_small_margins_only(
    model: RememberingTransformer, backbone: Backbone
) -> None:
    trained = learned(backbone, 2, **TWO_LEVEL)
    images = torch.cat([make_task(i).images for i in range(2)])
    by_share: dict[float, Tensor] = {}
    for share in (0.0, 0.3, 1.0):
        settings = ClassifierSettings(second_view=share).resolved(backbone.depth)
        state = trained.state
        state = replace(
            state,
            settings=replace(state.settings, classifier=settings),
            classifiers={
                n: type(c)(settings, c.experts, c.shared) for n, c in state.classifiers.items()
            },
        )
        calls: list[int] = []
        hook = backbone.layers[0].register_forward_hook(
            lambda module, inputs, output, calls=calls: calls.append(len(output))
        )
        by_share[share] = RememberingTransformer(backbone, state=state).predict_proba(images)
        hook.remove()
        extra = sum(calls) - len(images)
        flips = all(c.uses_flip for c in state.classifiers.values())
        assert extra == {0.0: 0, 1.0: len(images) if flips else 0}.get(share, extra)
        assert extra <= len(images)


def test_the_default_needs_one_pass(backbone: Backbone) -> None:
    one_view = {**TWO_LEVEL, "classifier": ClassifierSettings(second_view=0)}
    model = learned(backbone, 3, **one_view)
    assert layers_run(model.state, backbone.depth) == backbone.depth


def test_a_group_belongs_to_one_task(model: RememberingTransformer, digits: list[Task]) -> None:
    images = torch.cat([torch.as_tensor(task.images)[:20] for task in digits[:3]])
    prediction = model.predict(images, groups=[i // 20 for i in range(60)])
    assert prediction.tasks == [task.name for task in model.tasks for _ in range(20)]


def test_forgetting_a_task_removes_its_classes(model: RememberingTransformer) -> None:
    other = RememberingTransformer(model.backbone, state=model.state)
    gone = other.forget(model.tasks[1].name)
    assert gone.shared_with == (model.tasks[0].name, model.tasks[2].name)
    assert set(other.classes) == set(model.classes) - set(model.tasks[1].classes)
    assert list(other.state.classifiers[0].experts) == [0, 2]


def test_adapters_by_task_and_one_adapter_for_all(backbone: Backbone) -> None:
    by_task = learned(backbone, 3, **{**TWO_LEVEL, "adapters": "task"})
    assert [task.adapter for task in by_task.tasks] == [0, 1, 2]
    first = learned(backbone, 3, **{**TWO_LEVEL, "adapters": "first"})
    assert [task.adapter for task in first.tasks] == [0, 0, 0]


def test_a_capacity_limits_the_adapters(backbone: Backbone) -> None:
    model = learned(backbone, 4, **{**TWO_LEVEL, "adapters": "task", "capacity": 2, "memory": 4})
    assert len(model.state.adapters) == 2
    assert set(model.classes) == {f"{c}{i}" for c in "ab" for i in range(4)}


def test_flips_that_change_the_class_are_not_used(backbone: Backbone) -> None:
    """Classes are the left and the right half of an image: a flip exchanges them."""
    images = torch.randint(0, 60, (400, 3, 16, 16), generator=torch.Generator().manual_seed(0))
    images[:200, :, :, :8] += 180
    images[200:, :, :, 8:] += 180
    order = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    labels = [["left", "right"][int(i) // 200] for i in order]
    model = RememberingTransformer.from_backbone(backbone, **TWO_LEVEL)
    model.learn(Task("halves", images[order].to(torch.uint8), labels))
    assert not model.state.classifiers[0].uses_flip


def test_same_seed_same_bits_after_saving(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2, **TWO_LEVEL)
    model.save(tmp_path / "model")
    loaded = RememberingTransformer.load(tmp_path / "model")
    images = torch.cat([make_task(i).images for i in range(3)])
    for one in (model, loaded):
        one.learn(make_task(2, ("a2", "b2")))
    assert all(
        torch.equal(a, b)
        for a, b in zip(tensors(model).values(), tensors(loaded).values(), strict=True)
    )
    assert torch.equal(model.predict_proba(images), loaded.predict_proba(images))


def test_flipped_images_are_flipped() -> None:
    images = torch.arange(12, dtype=torch.uint8).view(1, 1, 3, 4)
    assert torch.equal(torch.as_tensor(FlippedImages(images)[torch.tensor([0])]), images.flip(3))


def test_sharing_adapters_with_heads_is_refused() -> None:
    with pytest.raises(RememberingError, match="lets tasks share adapters"):
        RememberingTransformer.from_backbone("bundled", classifier=ClassifierSettings(kind="head"))
