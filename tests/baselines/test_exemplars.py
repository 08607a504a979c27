"""Tests of the bounded replay memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import make_task

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES, Baseline
from remembering.baselines.exemplars import Exemplars
from remembering.config import Settings
from remembering.data.images import ImageList
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.learning.replay import image_bytes, kept_images


@pytest.fixture(scope="module")
def backbone(checkpoints: dict[str, Path]) -> Backbone:
    """A random backbone; these tests train nothing."""
    return Backbone.load(checkpoints["vit"])


def filled(backbone: Backbone, budget: int, tasks: list[Task]) -> tuple[Baseline, Exemplars]:
    learner = BASELINES["finetune"](backbone, Settings(rank=1))
    memory = Exemplars(learner, budget)
    for task in tasks:
        learner.classes = tuple(dict.fromkeys([*learner.classes, *task.classes]))
        memory.add(task, task.images.flatten(1).float())
        learner.learned += 1
    return learner, memory


def test_budget_is_divided_evenly_and_never_exceeded(backbone: Backbone) -> None:
    tasks = [make_task(i, (f"a{i}", f"b{i}")) for i in range(3)]
    for count in (1, 2, 3):
        _, memory = filled(backbone, 13, tasks[:count])
        assert len(memory) == min(13 // (2 * count), 6) * 2 * count
        assert memory.targets.bincount().unique().numel() == 1


def test_remaining_exemplars_are_nearest_to_their_class_mean(backbone: Backbone) -> None:
    tasks = [make_task(i, (f"a{i}", f"b{i}")) for i in range(2)]
    _, alone = filled(backbone, 4, tasks[:1])
    _, both = filled(backbone, 4, tasks)
    everything = torch.arange(len(alone))
    nearest = alone.images[everything][::2]
    assert torch.equal(both.images[torch.arange(2)], nearest)


def test_a_reappearing_class_has_a_share_in_both_tasks(backbone: Backbone) -> None:
    _, memory = filled(backbone, 8, [make_task(0), make_task(1)])
    assert memory.targets.tolist() == [0, 0, 1, 1] * 2


def test_footprint_of_the_method_includes_exemplars(backbone: Backbone) -> None:
    learner, memory = filled(backbone, 8, [make_task(0), make_task(1)])
    plain = BASELINES["finetune"](backbone, Settings(rank=1)).footprint()
    images = 8 * 3 * 16 * 16
    assert learner.footprint().bytes == plain.bytes + images + 8 * len(memory)
    assert learner.footprint().parameters == plain.parameters


def test_a_budget_below_the_number_of_classes_stores_nothing(backbone: Backbone) -> None:
    _, memory = filled(backbone, 2, [make_task(0), make_task(1)])
    assert len(memory) == 0


def test_large_images_are_stored_at_the_input_size_of_the_backbone(backbone: Backbone) -> None:
    photographs = ImageList([torch.zeros(3, 40, 50, dtype=torch.uint8)] * 3)
    assert kept_images(backbone, photographs).shape == (3, 3, 16, 16)
    assert image_bytes(backbone, photographs) == 3 * 3 * 16 * 16
    small = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    assert kept_images(backbone, small).shape == small.shape
    assert image_bytes(backbone, small) == small.numel()


def test_a_budget_of_zero_is_rejected(backbone: Backbone) -> None:
    with pytest.raises(RememberingError, match="at least 1"):
        Exemplars(BASELINES["finetune"](backbone, Settings()), 0)
