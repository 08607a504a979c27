"""What frozen parts make of images: always the same, so computed once where shared."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.images import ImageSequence
from remembering.inference.token_cache import batches
from remembering.runtime.files import sha256

LIMIT = 1024**3


@torch.no_grad()
def frozen_features(backbone: Backbone, images: ImageSequence, depth: int) -> Tensor:
    """The normalised CLS token after `depth` layers, without any adapter: (n, dim)."""
    parts = [
        backbone.pool(backbone.run(backbone.embed(images[index]), stop=depth))
        for index in batches(len(images))
    ]
    return torch.cat(parts)


@dataclass(frozen=True)
class _Entry:
    features: Tensor
    seconds: float
    images: ImageSequence
    """Held, so that nothing else can get its identity."""


class FeatureCache:
    """Features by what made them and of which images, for one process; the oldest go first.

    Images in a tensor are known by their content, others (files, datasets) by identity.

    >>> backbone, cache = Backbone.load("bundled"), FeatureCache()
    >>> images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> first = cache.features(backbone, images, depth=6)
    >>> cache.features(backbone, images.clone(), depth=6) is first
    True
    """

    def __init__(self, limit: int = LIMIT):
        self.limit = limit
        self.saved = 0.0
        """Seconds that were not spent, because what they made was there."""
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._backbone: tuple[Backbone, str] | None = None

    def features(self, backbone: Backbone, images: ImageSequence, depth: int) -> Tensor:
        """As `frozen_features`; not to be changed in place."""

        def make(_: Sequence[int]) -> list[Tensor]:
            return [frozen_features(backbone, images, depth)]

        return self.made(backbone, [f"depth {depth}"], images, make)[0]

    def made(
        self,
        backbone: Backbone,
        makers: Sequence[str],
        images: ImageSequence,
        make: Callable[[Sequence[int]], Sequence[Tensor]],
    ) -> list[Tensor]:
        """What each of these makers, on top of a backbone, makes of images.

        `make` is asked for those, by position, that are not there yet, all at once.
        """
        token_cache, identity = self._fingerprint(backbone), _identity(images)
        keys = [(f"{token_cache} {maker}", identity) for maker in makers]
        missing = [i for i, key in enumerate(keys) if key not in self._entries]
        for key in keys:
            if key in self._entries:
                self._entries.move_to_end(key)
                self.saved += self._entries[key].seconds
        if missing:
            started = time.perf_counter()
            new = make(missing)
            seconds = (time.perf_counter() - started) / len(missing)
            for i, features in zip(missing, new, strict=True):
                self._entries[keys[i]] = _Entry(features, seconds, images)
        found = [self._entries[key].features for key in keys]
        while len(self._entries) > 1 and self.bytes > self.limit:
            self._entries.popitem(last=False)
        return found

    @property
    def bytes(self) -> int:
        """What the features take."""
        return sum(entry.features.nbytes for entry in self._entries.values())

    def _fingerprint(self, backbone: Backbone) -> str:
        if self._backbone is None or self._backbone[0] is not backbone:
            self._backbone = backbone, backbone.fingerprint()
        return self._backbone[1]


def _identity(images: ImageSequence) -> str:
    if isinstance(images, Tensor):
        return f"{tuple(images.shape)} {sha256(images.contiguous().numpy().tobytes())}"
    return f"object {id(images)}"
