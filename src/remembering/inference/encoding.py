"""One pass without a task's adapter: router features, and tokens for the adapted layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.data.images import ImageBatch, Images, ImageSequence
from remembering.inference.token_cache import CACHE_BYTES, ShardBuffer, TokenCache
from remembering.routing import Router
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.mmap_buffer import chunk_rows
from remembering.runtime.progress import Step


@torch.inference_mode()
def encode(
    backbone: Backbone,
    router: Router,
    feature_adapter: Adapter | None,
    first_layer: int,
    images: Images,
) -> tuple[Tensor, Tensor]:
    """Compute router features and the tokens that enter the first adapted layer.

    Layers up to the deeper of the two are run once. The feature adapter acts from the first adapted
    layer on, as all adapters do, so that the layers below it serve both. If the router reads deeper
    states, the layers above are run again with the chosen adapter; the features are then the mean
    over the image and its horizontal flip (if `router.settings.flip`).

    Returns:
        Features (n, features) and tokens (n, tokens, dim).
    """
    read = router.settings.layers
    depths = sorted({*read, first_layer})
    active = feature_adapter.active() if feature_adapter else None
    states = dict(zip(depths, backbone.states(backbone.embed(images), depths, active), strict=True))
    features = router.features([states[depth] for depth in read])
    if router.settings.flip and read[-1] > first_layer:
        flipped = backbone.embed(flip_horizontally(images))
        features = (features + router.features(list(backbone.states(flipped, read, active)))) / 2
    return features, states[first_layer]


def flip_horizontally(images: Images) -> Images:
    """Flip images horizontally."""
    if isinstance(images, ImageBatch):
        return images.map(lambda image: image.flip(-1))
    return images.flip(-1) if isinstance(images, Tensor) else [x.flip(-1) for x in images]


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
    feature_adapter: Adapter | None,
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
        feature_adapter: Adapter under which the router reads deep states.
        first_layer: First adapted layer.
        images: Images of the task.
        step: Called with the number of images done.
        cache_tokens: Whether to keep the tokens, unless they exceed `CACHE_BYTES`.
        distributed: Each process encodes a share; all of them receive all tokens.
    """
    count = len(images)
    features, kept = ShardBuffer(count, distributed), ShardBuffer(count, distributed)
    for index in features.batches:
        batch, tokens = encode(backbone, router, feature_adapter, first_layer, images[index])
        features.put(index, batch)
        cache_tokens = cache_tokens and tokens[0].nbytes * count <= CACHE_BYTES
        if cache_tokens:
            kept.put(index, tokens)
        if step:
            step(distributed.processes * len(index))
    every = distributed.all_gather(kept.tensor) if cache_tokens else None
    return EncodedTask(features.tensor, TokenCache(backbone, images, first_layer, every))
