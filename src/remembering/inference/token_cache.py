"""Tokens that enter the first adapted layer: computed once and reused, or recomputed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.images import Images, ImageSequence
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.mmap_buffer import MmapBuffer

BATCH_SIZE = 64
CACHE_BYTES = 2 * 1024**3
"""Tokens that are kept between epochs, in memory or in a file (see `MmapBuffer`). The tokens of a
larger task are recomputed each time they are needed."""


def batches(count: int, size: int = BATCH_SIZE) -> Iterator[Tensor]:
    """Split the positions 0 .. count − 1 into runs of `size`."""
    return iter(torch.arange(count).split(size))


@dataclass(frozen=True)
class TokenCache:
    """Tokens that enter the first adapted layer, by image position.

    Attributes:
        backbone: Computes the tokens.
        images: The images.
        first_layer: First adapted layer.
        tokens: Cached tokens of all images. If None, tokens are computed on demand.
    """

    backbone: Backbone
    images: ImageSequence
    first_layer: int
    tokens: Tensor | None = None

    def __getitem__(self, index: Tensor) -> Tensor:
        if self.tokens is not None:
            return self.tokens[index.to(self.tokens.device)].to(self.backbone.device)
        return self.compute(self.images[index])

    @torch.no_grad()
    def compute(self, images: Images) -> Tensor:
        """Compute the tokens of any images."""
        return self.backbone.run(self.backbone.embed(images), stop=self.first_layer)

    def filled(self, distributed: Distributed = SINGLE_PROCESS) -> TokenCache:
        """Return a cache with all tokens computed, unless they exceed `CACHE_BYTES`."""
        count = len(self.images)
        if self[torch.tensor([0])].nbytes * count > CACHE_BYTES:
            return self
        buffer = ShardBuffer(count, distributed)
        for index in buffer.batches:
            buffer.put(index, self[index])
        return replace(self, tokens=distributed.all_gather(buffer.tensor))


class ShardBuffer(MmapBuffer):
    """Rows of this process's share of `count` positions, and the batches they are computed in."""

    def __init__(self, count: int, distributed: Distributed):
        every = list(batches(count))
        shard = distributed.share(every)
        super().__init__(sum(len(index) for index in shard))
        # A process with an empty share still needs the shape of a row.
        self.batches = shard or [every[0][:1]]
        self._start = int(self.batches[0][0])

    def put(self, index: Tensor, part: Tensor) -> None:
        shard = slice(self.count)
        super().put(index[shard] - self._start, part[shard])
