"""Images changed at random each time they are learned from, in ways that leave what they show.

Pixels are only moved, so whole images of any size and channel count stay uint8. What happens to an
image depends on the seed, the task, the epoch and its position, and on nothing drawn before: a
training that goes on from a checkpoint sees the same images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remembering.config import Augment
from remembering.runtime.seeding import uniform

SHIFT = 8
"""A crop moves an image by up to one part in so many of its sides: 4 of 32 pixels, 28 of 224."""


def augmented(
    images: Tensor | list[Tensor], augment: Augment, index: Tensor, seed: int, task: int, epoch: int
) -> Tensor | list[Tensor]:
    """Images (channels, height, width) as an epoch sees them; `index` has their positions."""
    changed = [
        _moved(image, augment, uniform(3, seed, "augment", task, epoch, position))
        for image, position in zip(images, index.tolist(), strict=True)
    ]
    return torch.stack(changed) if isinstance(images, Tensor) else changed


def _moved(image: Tensor, augment: Augment, chance: list[float]) -> Tensor:
    """One image; `chance` are three numbers from 0 to 1."""
    if augment == "none":
        return image
    mirror, down, right = chance
    height, width = image.shape[-2:]
    rows, columns = torch.arange(height), torch.arange(width)
    if augment in ("crop", "shift"):
        rows, columns = _shifted(rows, down), _shifted(columns, right)
    if mirror < 0.5 and augment != "shift":
        columns = columns.flip(0)
    return image[:, rows.to(image.device)][:, :, columns.to(image.device)]


def _shifted(positions: Tensor, chance: float) -> Tensor:
    """Positions along a side, moved; beyond its ends the side is reflected.

    >>> _shifted(torch.arange(8), 0.0), _shifted(torch.arange(8), 0.9)
    (tensor([1, 0, 1, 2, 3, 4, 5, 6]), tensor([1, 2, 3, 4, 5, 6, 7, 6]))
    """
    most, last = len(positions) // SHIFT, len(positions) - 1
    moved = (positions + int(chance * (2 * most + 1)) - most).abs()
    return last - (last - moved).abs()
