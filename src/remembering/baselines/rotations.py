"""Images turned by quarters: other than those of the task, and yet made of them."""

from __future__ import annotations

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.images import ImageSequence, LazyImages

TURNS = 4


class Rotated(LazyImages):
    """All images by 0, 90, 180 and 270 degrees: of n, number k n + i is image i after k quarters.

    Fewer `turns` than four leave out the last. Images are turned at the backbone's size, where they
    are square.

    >>> images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> turned = Rotated(Backbone.load("bundled"), images)
    >>> len(turned), turned[torch.tensor([0, 7])].shape
    (8, torch.Size([2, 1, 28, 28]))
    """

    def __init__(self, backbone: Backbone, images: ImageSequence, turns: int = TURNS):
        self.backbone, self.images, self.turns = backbone, images, turns

    def __len__(self) -> int:
        return self.turns * len(self.images)

    def __getitem__(self, index: Tensor, /) -> Tensor:
        count = len(self.images)
        result = self.backbone.shrink(self.images[index % count]).clone()
        quarters = (index // count).to(result.device)
        for k in range(1, self.turns):
            result[quarters == k] = torch.rot90(result[quarters == k], k, (2, 3))
        return result
