"""One pass without a task's adapter: what the router sees, and where the adapters begin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.data.images import ImageBatch, Images, ImageSequence
from remembering.routing import Router
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.mmap_buffer import MmapBuffer, chunk_rows
from remembering.runtime.progress import Step

BATCH = 64
CACHE_BYTES = 2 * 1024**3
"""Tokens kept between epochs: in memory or in a file (see `rows`); those of a larger task are
computed anew each time they are wanted."""


def batches(count: int, size: int = BATCH) -> Iterator[Tensor]:
    """Positions 0 .. count − 1 in runs of `size`."""
    return iter(torch.arange(count).split(size))


@torch.inference_mode()
def encode(
    backbone: Backbone,
    router: Router,
    feature_adapter: Adapter | None,
    first_layer: int,
    images: Images,
) -> tuple[Tensor, Tensor]:
    """Router features (n, features), and the tokens that enter the first adapted layer.

    Layers up to the deeper of the two are run once. `feature_adapter` act from the first adapted layer on, as
    all adapters do, so the layers below it are computed for both. If the router reads deeper, the
    layers between are run again with the adapter that it chooses. It then has a pass of its own,
    and another of the mirror image: the mean of both says more than either.
    """
    read = router.settings.layers
    at = sorted({*read, first_layer})
    active = feature_adapter.active() if feature_adapter else None
    states = dict(zip(at, backbone.states(backbone.embed(images), at, active), strict=True))
    features = router.features([states[i] for i in read])
    if router.settings.flip and read[-1] > first_layer:
        mirrored = backbone.embed(flip_horizontally(images))
        features = (features + router.features(list(backbone.states(mirrored, read, active)))) / 2
    return features, states[first_layer]


def flip_horizontally(images: Images) -> Images:
    """Flip images horizontally; a batch of files stays lazy."""
    if isinstance(images, Tensor):
        return images.flip(-1)
    if isinstance(images, ImageBatch):
        return images.map(lambda image: image.flip(-1))
    return [image.flip(-1) for image in images]


@dataclass(frozen=True)
class TokenCache:
    """Tokens that enter the first adapted layer, by position: kept, or computed when asked for."""

    backbone: Backbone
    images: ImageSequence
    first_layer: int
    kept: Tensor | None = None

    def __getitem__(self, index: Tensor) -> Tensor:
        if self.kept is not None:
            return self.kept[index.to(self.kept.device)].to(self.backbone.device)
        return self.compute(self.images[index])

    @torch.no_grad()
    def compute(self, images: Images) -> Tensor:
        """The tokens of any images."""
        return self.backbone.run(self.backbone.embed(images), stop=self.first_layer)

    def keep(self, distributed: Distributed = SINGLE_PROCESS) -> TokenCache:
        """The same, with everything computed now unless it is too much."""
        count = len(self.images)
        if self[torch.tensor([0])].nbytes * count > CACHE_BYTES:
            return self
        rows = _ShardBuffer(count, distributed)
        for index in rows.batches:
            rows.put(index, self[index])
        return replace(self, kept=distributed.all_gather(rows.tensor))


class _ShardBuffer(MmapBuffer):
    """MmapBuffer of a process's share of `count` positions, and the batches that they come in."""

    def __init__(self, count: int, distributed: Distributed):
        every = list(batches(count))
        own = distributed.share(every)
        super().__init__(sum(len(index) for index in own))
        # A process without a share still has to know what a row looks like.
        self.batches = own or [every[0][:1]]
        self._start = int(self.batches[0][0])

    def put(self, index: Tensor, part: Tensor) -> None:
        own = slice(self.count)
        super().put(index[own] - self._start, part[own])


@dataclass(frozen=True)
class Encoded:
    """A task's images after the frozen part."""

    features: Tensor
    """What the router sees of this process's share, (n, features): on the CPU, in a file, if they
    are many."""
    token_cache: TokenCache

    def chunks(self) -> Iterator[Tensor]:
        """The features a few at a time, where the backbone is."""
        for part in self.features.split(chunk_rows(self.features.shape[1])):
            yield part.to(self.token_cache.backbone.device)


def encode_task(
    backbone: Backbone,
    router: Router,
    feature_adapter: Adapter | None,
    first_layer: int,
    images: ImageSequence,
    step: Step | None = None,
    keep: bool = True,
    distributed: Distributed = SINGLE_PROCESS,
) -> Encoded:
    """Read and encode each image of a task once.

    Args:
        keep: whether to keep the tokens, if they are not too many.
        distributed: its processes encode a share each; all of them get all tokens.
    """
    count = len(images)
    features, kept = _ShardBuffer(count, distributed), _ShardBuffer(count, distributed)
    for index in features.batches:
        seen, tokens = encode(backbone, router, feature_adapter, first_layer, images[index])
        features.put(index, seen)
        keep = keep and tokens[0].nbytes * count <= CACHE_BYTES
        if keep:
            kept.put(index, tokens)
        if step:
            step(distributed.processes * len(index))
    whole = distributed.all_gather(kept.tensor) if keep else None
    token_cache = TokenCache(backbone, images, first_layer, whole)
    return Encoded(features.tensor, token_cache)
