"""One pass without a task's adapter: what the router sees, and where the adapters begin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remembering.adapters import Adapter
from remembering.backbone import Backbone
from remembering.images import ImageSequence
from remembering.progress import Step
from remembering.routers import Router

BATCH = 64
# Tokens kept between epochs; a larger task is encoded anew each time it is read.
CACHE_BYTES = 2 * 1024**3


def batches(count: int, size: int = BATCH) -> Iterator[Tensor]:
    """Positions 0 .. count − 1 in runs of `size`."""
    return iter(torch.arange(count).split(size))


@torch.inference_mode()
def encode(
    backbone: Backbone,
    router: Router,
    eyes: Adapter | None,
    first_layer: int,
    images: Tensor | list[Tensor],
) -> tuple[Tensor, Tensor]:
    """Router features (n, features), and the tokens that enter the first adapted layer.

    Layers up to the deeper of the two are run once. `eyes` act from the first adapted layer on, as
    all adapters do, so the layers below it are computed for both. If the router reads deeper, the
    layers between are run again with the adapter that it chooses. It then has a pass of its own,
    and another of the mirror image: the mean of both says more than either.
    """
    read = router.settings.layers
    at = sorted({*read, first_layer})
    active = eyes.active() if eyes else None
    states = dict(zip(at, backbone.states(backbone.embed(images), at, active), strict=True))
    features = router.features([states[i] for i in read])
    if router.settings.mirror and read[-1] > first_layer:
        mirrored = backbone.embed(mirror(images))
        features = (features + router.features(list(backbone.states(mirrored, read, active)))) / 2
    return features, states[first_layer]


def mirror(images: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    """Left becomes right."""
    return [image.flip(-1) for image in images] if isinstance(images, list) else images.flip(-1)


@dataclass(frozen=True)
class Prefix:
    """Tokens that enter the first adapted layer, by position: kept, or computed when asked for."""

    backbone: Backbone
    images: ImageSequence
    first_layer: int
    kept: Tensor | None = None

    @torch.no_grad()
    def __getitem__(self, index: Tensor) -> Tensor:
        if self.kept is not None:
            return self.kept[index]
        return self.backbone.run(self.backbone.embed(self.images[index]), stop=self.first_layer)

    def keep(self) -> Prefix:
        """The same, with everything computed now if it fits in memory."""
        count = len(self.images)
        if self[torch.tensor([0])].nbytes * count > CACHE_BYTES:
            return self
        return replace(self, kept=torch.cat([self[index] for index in batches(count)]))


@dataclass(frozen=True)
class Encoded:
    """A task's images after the frozen part."""

    features: Tensor
    prefix: Prefix


def encode_task(
    backbone: Backbone,
    router: Router,
    eyes: Adapter | None,
    first_layer: int,
    images: ImageSequence,
    step: Step | None = None,
) -> Encoded:
    """Read and encode each image of a task once."""
    features, kept = [], []
    keep = True
    for index in batches(len(images)):
        f, tokens = encode(backbone, router, eyes, first_layer, images[index])
        keep = keep and tokens[0].nbytes * len(images) <= CACHE_BYTES
        features.append(f.clone())
        if keep:
            kept.append(tokens.clone())
        if step:
            step(len(index))
    # The clones above, made outside inference mode, are ordinary tensors that autograd may save.
    prefix = Prefix(backbone, images, first_layer, torch.cat(kept) if keep else None)
    return Encoded(torch.cat(features), prefix)
