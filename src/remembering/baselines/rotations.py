"""Images rotated by multiples of 90 degrees, used for self-supervision and as outliers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.augmentation import QUARTERS, rotated
from remembering.data.images import ImageSequence, LazyImages

ALL_QUARTERS = range(QUARTERS)


class RotatedImages(LazyImages):
    """Every image rotated by each of the given multiples of 90 degrees.

    Of n images, position k n + i is image i rotated by `quarters[k]` quarter turns. Images are
    rotated at the backbone's input size, where they are square.

    >>> images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> rotated = RotatedImages(Backbone.load("bundled"), images)
    >>> len(rotated), rotated[torch.tensor([0, 7])].shape
    (8, torch.Size([2, 1, 28, 28]))
    """

    def __init__(
        self, backbone: Backbone, images: ImageSequence, quarters: Sequence[int] = ALL_QUARTERS
    ):
        self.backbone, self.images, self.quarters = backbone, images, quarters

    def __len__(self) -> int:
        return len(self.quarters) * len(self.images)

    def __getitem__(self, index: Tensor, /) -> Tensor:
        count = len(self.images)
        images = self.backbone.shrink(self.images[index % count])
        return rotated(images, torch.tensor(self.quarters)[index // count])
