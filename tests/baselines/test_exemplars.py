"""The bounded memory of training images."""

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
    """The random one: nothing is learned here."""
    return Backbone.load(checkpoints["vit"])


def filled(backbone: Backbone, budget: int, tasks: list[Task]) -> tuple[Baseline, Exemplars]:
    learner = BASELINES["finetune"](backbone, Settings(rank=1))
    memory = Exemplars(learner, budget)
    for task in tasks:
        learner.classes = tuple(dict.fromkeys([*learner.classes, *task.classes]))
        memory.add(task, task.images.flatten(1).float())
        learner.learned += 1
    return learner, memory


def test_never_more_than_the_budget_and_even(backbone: Backbone) -> None:
    tasks = [make_task(i, (f"a{i}", f"b{i}")) for i in range(3)]
    for count in (1, 2, 3):
        _, memory = filled(backbone, 13, tasks[:count])
        assert len(memory) == min(13 // (2 * count), 6) * 2 * count
        assert memory.targets.bincount().unique().numel() == 1


def test_those_that_stay_are_the_nearest_to_their_centre(backbone: Backbone) -> None:
    tasks = [make_task(i, (f"a{i}", f"b{i}")) for i in range(2)]
    _, alone = filled(backbone, 4, tasks[:1])
    _, both = filled(backbone, 4, tasks)
    everything = torch.arange(len(alone))
    nearest = alone.images[everything][::2]
    assert torch.equal(both.images[torch.arange(2)], nearest)


def test_a_class_that_comes_back_has_a_share_in_both_tasks(backbone: Backbone) -> None:
    _, memory = filled(backbone, 8, [make_task(0), make_task(1)])
    assert memory.targets.tolist() == [0, 0, 1, 1] * 2


def test_is_kept_with_the_method(backbone: Backbone) -> None:
    learner, memory = filled(backbone, 8, [make_task(0), make_task(1)])
    plain = BASELINES["finetune"](backbone, Settings(rank=1)).footprint()
    images = 8 * 3 * 16 * 16
    assert learner.footprint().bytes == plain.bytes + images + 8 * len(memory)
    assert learner.footprint().parameters == plain.parameters


def test_a_budget_below_the_number_of_classes_keeps_none_of_the_new(backbone: Backbone) -> None:
    _, memory = filled(backbone, 2, [make_task(0), make_task(1)])
    assert len(memory) == 0


def test_photographs_are_kept_at_the_size_of_the_backbone(backbone: Backbone) -> None:
    photographs = ImageList([torch.zeros(3, 40, 50, dtype=torch.uint8)] * 3)
    assert kept_images(backbone, photographs).shape == (3, 3, 16, 16)
    assert image_bytes(backbone, photographs) == 3 * 3 * 16 * 16
    small = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    assert kept_images(backbone, small).shape == small.shape
    assert image_bytes(backbone, small) == small.numel()


def test_no_budget(backbone: Backbone) -> None:
    with pytest.raises(RememberingError, match="at least 1"):
        Exemplars(BASELINES["finetune"](backbone, Settings()), 0)
