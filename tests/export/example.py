"""Tasks whose answers are uncertain, so that differences show."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.data.task import Task


def noise(seed: int, count: int, number: int, size: int) -> Tensor:
    """Dark noise whose scale depends on the task's number, with a brighter band."""
    rng, side = torch.Generator().manual_seed(seed), 2 + 3 * number
    coarse = torch.rand(count, 3, side, side, generator=rng)
    images = (100 * F.interpolate(coarse, (size, size), mode="bilinear")).to(torch.uint8)
    height = size // 4
    images[:, :, number * height : (number + 1) * height] += 80
    return images


def hard_task(number: int, classes: tuple[Any, ...], size: int = 16, per_class: int = 12) -> Task:
    """Images whose brightness hardly depends on the class."""
    images = noise(number, len(classes) * per_class, number, size)
    targets = torch.arange(len(classes)).repeat_interleave(per_class)
    images += (10 * targets).to(torch.uint8)[:, None, None, None]
    return Task(f"task {number}", images, [classes[i] for i in targets.tolist()])


def queries(size: int) -> Tensor:
    """Images like those of three tasks, and one that is like none."""
    known = [noise(100 + number, 8, number, size) + 10 for number in range(3)]
    return torch.cat([*known, torch.full_like(known[0][:1], 255)])
