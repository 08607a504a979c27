"""The frozen layers: router features, and the tokens that enter the first adapted layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from remembering.adapters.lora import ActiveAdapters, Adapter
from remembering.backbones.backbone import Backbone
from remembering.data.images import ImageBatch, Images, ImageSequence, LazyImages
from remembering.inference.token_cache import CACHE_BYTES, ShardBuffer, TokenCache, batches
from remembering.routing import Router
from remembering.routing.features import extract_features
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.mmap_buffer import chunk_rows
from remembering.runtime.progress import Step


@torch.inference_mode()
def encode(
    backbone: Backbone, router: Router, first_layer: int, images: Images
) -> tuple[Tensor, Tensor]:
    """Compute router features and the tokens that enter the first adapted layer.

    Both come from the frozen layers, each of which is run once. If the router reads states above
    the first adapted layer, the layers between are run again with the chosen adapter.

    Returns:
        Features (n, features) and tokens (n, tokens, dim).
    """
    read = router.settings.layers
    depths = sorted({*read, first_layer})
    states = dict(zip(depths, backbone.states(backbone.embed(images), depths), strict=True))
    return router.features([states[depth] for depth in read]), states[first_layer]


@torch.inference_mode()
def deep_features(
    backbone: Backbone,
    tokens: Tensor,
    layers: tuple[int, ...],
    first_layer: int,
    adapters: ActiveAdapters | None,
) -> Tensor:
    """Compute the features of a classifier (n, features) under active adapters."""
    states = list(backbone.states(tokens, layers, adapters, start=first_layer))
    return extract_features(states, "pooled")


@torch.no_grad()
def frozen_features(backbone: Backbone, images: ImageSequence, depth: int) -> Tensor:
    """Return the normalized CLS token after `depth` layers, without an adapter: (n, dim)."""
    parts = [
        backbone.pool(backbone.run(backbone.embed(images[index]), stop=depth))
        for index in batches(len(images))
    ]
    return torch.cat(parts)


def flip_horizontally(images: Images) -> Images:
    """Flip images horizontally."""
    if isinstance(images, ImageBatch):
        return images.map(lambda image: image.flip(-1))
    return images.flip(-1) if isinstance(images, Tensor) else [x.flip(-1) for x in images]


class FlippedImages(LazyImages):
    """A sequence of images, each flipped horizontally."""

    def __init__(self, images: ImageSequence):
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Tensor, /) -> Images:
        return flip_horizontally(self.images[index])


@dataclass(frozen=True)
class EncodedTask:
    """A task's images after the frozen layers.

    Attributes:
        features: Router features of this process's share, (n, features). On the CPU, in a mapped
            file, if there are many.
        token_cache: Tokens of all images.
    """

    features: Tensor
    token_cache: TokenCache

    def chunks(self) -> Iterator[Tensor]:
        """Iterate over the features, a few at a time, on the backbone's device."""
        for part in self.features.split(chunk_rows(self.features.shape[1])):
            yield part.to(self.token_cache.backbone.device)


def encode_task(
    backbone: Backbone,
    router: Router,
    first_layer: int,
    images: ImageSequence,
    step: Step | None = None,
    cache_tokens: bool = True,
    distributed: Distributed = SINGLE_PROCESS,
) -> EncodedTask:
    """Decode and encode each image of a task once.

    Args:
        backbone: The frozen backbone.
        router: Defines the features.
        first_layer: First adapted layer.
        images: Images of the task.
        step: Called with the number of images done.
        cache_tokens: Whether to keep the tokens, unless they exceed `CACHE_BYTES`.
        distributed: Each process encodes a share; all of them receive all tokens.
    """
    count = len(images)
    features, kept = ShardBuffer(count, distributed), ShardBuffer(count, distributed)
    for index in features.batches:
        batch, tokens = encode(backbone, router, first_layer, images[index])
        features.put(index, batch)
        cache_tokens = cache_tokens and tokens[0].nbytes * count <= CACHE_BYTES
        if cache_tokens:
            kept.put(index, tokens)
        if step:
            step(distributed.processes * len(index))
    every = distributed.all_gather(kept.tensor) if cache_tokens else None
    return EncodedTask(features.tensor, TokenCache(backbone, images, first_layer, every))


def deep_task_features(
    token_cache: TokenCache,
    layers: tuple[int, ...],
    adapter: Adapter | None,
    step: Step | None = None,
    distributed: Distributed = SINGLE_PROCESS,
) -> Tensor:
    """Compute the features of a classifier for this process's share of a task."""
    backbone, first_layer = token_cache.backbone, token_cache.first_layer
    active = adapter.active() if adapter else None
    buffer = ShardBuffer(len(token_cache.images), distributed)
    for index in buffer.batches:
        tokens = token_cache[index]
        buffer.put(index, deep_features(backbone, tokens, layers, first_layer, active))
        if step:
            step(distributed.processes * len(index))
    return buffer.tensor
