"""Random augmentation that preserves the content of images: flips and crops.

Pixels are only moved, so images of any size and channel count stay uint8. The change of an image
depends on the seed, the task, the epoch and its position alone: training that resumes from a
checkpoint sees the same images.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from remembering.config import Augment
from remembering.data.images import ImageBatch, Images
from remembering.data.resized_crop import resized_crop
from remembering.runtime.seeding import uniform

SHIFT = 8
"""A crop shifts an image by up to 1 / SHIFT of each side: 4 of 32 pixels, 28 of 224."""
QUARTERS = 4
"""Orientations of an image that is rotated by multiples of 90 degrees."""
_NUMBERS: dict[Augment, int] = {"none": 3, "shift": 3, "flip": 3, "crop": 3, "resized_crop": 5}
"""Random numbers per image."""


def augmented(
    images: Images, augment: Augment, index: Tensor, seed: int, task: int, epoch: int
) -> Images:
    """Augment a batch for one epoch.

    Args:
        images: Images (channels, height, width).
        augment: "none", "shift", "flip" (horizontally, with probability 1/2), "crop" (both) or
            "resized_crop" (flip and enlarge a part).
        index: Position of each image in its task.
        seed: Seed of the run.
        task: Number of the task.
        epoch: Number of the epoch.
    """
    positions = index.tolist()
    if len(images) != len(positions):
        raise ValueError(f"{len(images)} images but {len(positions)} positions")

    def change(i: int) -> Tensor:
        chance = uniform(_NUMBERS[augment], seed, "augment", task, epoch, positions[i])
        return _augment(images[i], augment, chance)

    if isinstance(images, Tensor):
        return torch.stack([change(i) for i in range(len(positions))])
    return ImageBatch([partial(change, i) for i in range(len(positions))], cache_bytes=0)


def rotated(images: Tensor, quarters: Tensor) -> Tensor:
    """Rotate square images (n, channels, side, side), each by a number of quarter turns.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]])
    >>> rotated(image.repeat(2, 1, 1, 1), torch.tensor([0, 1])).tolist()
    [[[[1, 2], [3, 4]]], [[[2, 4], [1, 3]]]]
    """
    result = images.clone()
    for quarter in range(1, QUARTERS):
        rows = (quarters == quarter).to(images.device)
        result[rows] = torch.rot90(images[rows], quarter, (2, 3))
    return result


def _augment(image: Tensor, augment: Augment, chance: list[float]) -> Tensor:
    """Augment one image; `chance` holds numbers in 0..1."""
    if augment == "none":
        return image
    flip, down, right = chance[:3]
    if augment == "resized_crop":
        image = resized_crop(image, chance[1:])
    height, width = image.shape[-2:]
    rows, columns = torch.arange(height), torch.arange(width)
    if augment in ("crop", "shift"):
        rows, columns = _shifted(rows, down), _shifted(columns, right)
    if flip < 0.5 and augment != "shift":
        columns = columns.flip(0)
    return image[:, rows.to(image.device)][:, :, columns.to(image.device)]


def _shifted(positions: Tensor, chance: float) -> Tensor:
    """Shift the positions along a side; beyond its ends the side is reflected.

    >>> _shifted(torch.arange(8), 0.0), _shifted(torch.arange(8), 0.9)
    (tensor([1, 0, 1, 2, 3, 4, 5, 6]), tensor([1, 2, 3, 4, 5, 6, 7, 6]))
    """
    most, last = len(positions) // SHIFT, len(positions) - 1
    moved = (positions + int(chance * (2 * most + 1)) - most).abs()
    return last - (last - moved).abs()
