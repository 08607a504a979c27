"""Replay memory, chosen by herding (paper, section 3.4; Algorithm 1, lines 6 to 8)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.images import ImageSequence
from remembering.data.task import Label
from remembering.inference.encoding import BATCH
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.mmap_buffer import chunk_rows


@dataclass(frozen=True)
class Memory:
    """A task's replay images Ξ, as uint8, and their labels."""

    images: Tensor
    labels: tuple[Label, ...]

    @property
    def bytes(self) -> int:
        """What the images take."""
        return self.images.numel()


def kept_images(backbone: Backbone, images: ImageSequence, index: Tensor | None = None) -> Tensor:
    """Images as they came, or at the backbone's size where that is smaller; uint8."""
    index = torch.arange(len(images)) if index is None else index
    if isinstance(images, Tensor) and images[0].nbytes <= _shrunk_bytes(backbone, images):
        return images[index].contiguous()
    # A few at a time: many photographs at their full size would fill the memory of a machine.
    parts = [backbone.shrink(images[part]).cpu() for part in index.split(BATCH)]
    return torch.cat(parts).contiguous()


def image_bytes(backbone: Backbone, images: ImageSequence) -> int:
    """What `kept_images` takes for all of them."""
    one = _shrunk_bytes(backbone, images)
    return len(images) * (min(one, images[0].nbytes) if isinstance(images, Tensor) else one)


def _shrunk_bytes(backbone: Backbone, images: ImageSequence) -> int:
    return backbone.shrink(images[torch.tensor([0])])[0].nbytes


def herd(
    latents: Tensor, targets: Tensor, size: int, distributed: Distributed = SINGLE_PROCESS
) -> Tensor:
    """Positions of the samples nearest to their class centre, size / U for each of U classes.

    μ_y is the mean latent of class y; the samples with the least ‖μ_y − F σ(v)‖ are chosen. A class
    with fewer samples gives all it has; what a division leaves over goes to the first classes.
    Each process of an `distributed` gives its own rows of the latents, and the targets of all.

    >>> herd(torch.tensor([[0.0], [1.0], [5.0], [7.0]]), torch.tensor([0, 0, 1, 1]), size=2)
    tensor([0, 2])
    """
    classes = targets.unique().tolist()
    share, extra = divmod(size, len(classes))
    start, chosen = distributed.start(len(latents)), []
    for i, label in enumerate(classes):
        members = (targets == label).nonzero().squeeze(1)
        own = members[(members >= start) & (members < start + len(latents))] - start
        distance = _from_centre(latents, own.to(latents.device), len(members), distributed)
        nearest = distance.argsort(stable=True)[: share + (i < extra)]
        chosen.append(members[nearest.cpu()])
    return torch.cat(chosen)


def _from_centre(latents: Tensor, own: Tensor, count: int, distributed: Distributed) -> Tensor:
    """‖μ − latent‖ of each of `count` members, with μ the mean of all and `own` the rows of those
    that this process has; there may be more than memory holds."""
    chunks = own.split(chunk_rows(latents.shape[1]))
    centre = (
        distributed.all_reduce(torch.stack([latents[chunk].sum(0) for chunk in chunks]).sum(0))
        / count
    )
    return distributed.all_gather(
        torch.cat([(latents[chunk] - centre).norm(dim=1) for chunk in chunks])
    )
