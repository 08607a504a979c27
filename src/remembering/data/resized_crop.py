"""Random resized crop, the augmentation of the paper's authors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

AREA = (0.08, 1.0)
"""Range of the share of the area that a crop covers; torchvision's default, as the authors use."""
ASPECT = (3 / 4, 4 / 3)
"""Range of the ratio of width to height, drawn uniformly in its logarithm; likewise."""


def resized_crop(image: Tensor, chance: Sequence[float]) -> Tensor:
    """Cut out a random rectangle and resize it to the size of the image, bilinearly.

    A rectangle that would exceed the image is cut to its height or width.

    Args:
        image: (channels, height, width).
        chance: Four numbers in 0..1: area, aspect ratio, and position of the rectangle.

    >>> import torch
    >>> image = torch.arange(16, dtype=torch.uint8).view(1, 4, 4)
    >>> torch.equal(resized_crop(image, [1.0, 0.5, 0.0, 0.0]), image)
    True
    """
    height, width = image.shape[-2:]
    area = height * width * (AREA[0] + chance[0] * (AREA[1] - AREA[0]))
    low, high = (math.log(bound) for bound in ASPECT)
    aspect = math.exp(low + chance[1] * (high - low))
    rows = min(height, max(1, round(math.sqrt(area / aspect))))
    columns = min(width, max(1, round(math.sqrt(area * aspect))))
    top = min(int(chance[2] * (height - rows + 1)), height - rows)
    left = min(int(chance[3] * (width - columns + 1)), width - columns)
    part = image[None, :, top : top + rows, left : left + columns].float()
    resized = F.interpolate(part, (height, width), mode="bilinear", antialias=True)[0]
    return resized if image.is_floating_point() else resized.round().clamp(0, 255).to(image.dtype)
