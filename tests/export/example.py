"""Tasks whose answers are uncertain, so that differences show."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.data.task import Task


def noise(seed: int, count: int, side: int, size: int) -> Tensor:
    """Colour noise of `side` × `side` values, enlarged to `size`."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, side, side, generator=rng)
    return (255 * F.interpolate(coarse, (size, size), mode="bilinear")).to(torch.uint8)


def hard_task(number: int, classes: tuple[Any, ...], size: int = 16, per_class: int = 12) -> Task:
    """Noise whose scale depends on the task, and whose brightness hardly depends on the class."""
    images = noise(number, len(classes) * per_class, 2 + 3 * number, size)
    for i in range(len(classes)):
        images[i * per_class : (i + 1) * per_class] //= 2
        images[i * per_class : (i + 1) * per_class] += 10 * i
    labels = [label for label in classes for _ in range(per_class)]
    return Task(f"task {number}", images, labels)


def queries(size: int, tasks: int = 3, count: int = 8) -> Tensor:
    """Images like those of the tasks, and one that is like none."""
    known = [noise(100 + number, count, 2 + 3 * number, size) // 2 + 10 for number in range(tasks)]
    return torch.cat([*known, torch.full_like(known[0][:1], 255)])
