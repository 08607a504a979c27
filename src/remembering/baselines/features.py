"""Features of frozen models, computed once and shared between methods."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.images import ImageSequence
from remembering.inference.encoding import frozen_features
from remembering.runtime.files import sha256

CACHE_BYTES = 1024**3


@dataclass(frozen=True)
class _Entry:
    features: Tensor
    seconds: float
    images: ImageSequence
    """Referenced so that its `id`, part of the key, is not reused."""


class FeatureCache:
    """In-process cache of features by model and images, with least recently used eviction.

    Tensors of images are identified by content, other sequences (files, datasets) by identity.

    Args:
        cache_bytes: Upper limit for all cached features; the latest entry is always kept.

    Attributes:
        saved: Seconds of computation that cache hits have saved.

    >>> import torch
    >>> backbone, cache = Backbone.load("bundled"), FeatureCache()
    >>> images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> first = cache.features(backbone, images, depth=6)
    >>> cache.features(backbone, images.clone(), depth=6) is first
    True
    """

    def __init__(self, cache_bytes: int = CACHE_BYTES):
        self.cache_bytes = cache_bytes
        self.saved = 0.0
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._backbone: tuple[Backbone, str] | None = None

    def features(self, backbone: Backbone, images: ImageSequence, depth: int) -> Tensor:
        """Return cached `frozen_features`; do not modify them in place."""

        def compute(_: Sequence[int]) -> list[Tensor]:
            return [frozen_features(backbone, images, depth)]

        return self.made(backbone, [f"depth {depth}"], images, compute)[0]

    def made(
        self,
        backbone: Backbone,
        makers: Sequence[str],
        images: ImageSequence,
        make: Callable[[Sequence[int]], Sequence[Tensor]],
    ) -> list[Tensor]:
        """Return the output of several models for the same images.

        Args:
            backbone: The frozen backbone below all of these models.
            makers: A key for each model.
            images: The input images.
            make: Computes the outputs of the models at the given positions of `makers`; called
                once, with all that are missing.

        Returns:
            One tensor per model; do not modify them in place.
        """
        fingerprint, identity = self._fingerprint(backbone), _identity(images)
        keys = [(f"{fingerprint} {maker}", identity) for maker in makers]
        missing = [i for i, key in enumerate(keys) if key not in self._entries]
        for key in keys:
            if key in self._entries:
                self._entries.move_to_end(key)
                self.saved += self._entries[key].seconds
        if missing:
            started = time.perf_counter()
            computed = make(missing)
            seconds = (time.perf_counter() - started) / len(missing)
            for i, features in zip(missing, computed, strict=True):
                self._entries[keys[i]] = _Entry(features, seconds, images)
        found = [self._entries[key].features for key in keys]
        while len(self._entries) > 1 and self.bytes > self.cache_bytes:
            self._entries.popitem(last=False)
        return found

    @property
    def bytes(self) -> int:
        """Size of all cached features."""
        return sum(entry.features.nbytes for entry in self._entries.values())

    def _fingerprint(self, backbone: Backbone) -> str:
        if self._backbone is None or self._backbone[0] is not backbone:
            self._backbone = backbone, backbone.fingerprint()
        return self._backbone[1]


def _identity(images: ImageSequence) -> str:
    if isinstance(images, Tensor):
        return f"{tuple(images.shape)} {sha256(images.contiguous().numpy().tobytes())}"
    return f"object {id(images)}"
