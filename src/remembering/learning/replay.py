"""Replay memory, chosen by herding (paper, section 3.4; Algorithm 1, lines 6 to 8) or at random."""

from __future__ import annotations

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.images import ImageSequence
from remembering.inference.token_cache import BATCH_SIZE
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.mmap_buffer import chunk_rows


def kept_images(backbone: Backbone, images: ImageSequence, index: Tensor | None = None) -> Tensor:
    """Return images (uint8) at their own size, or at the backbone's if that is smaller."""
    index = torch.arange(len(images)) if index is None else index
    if isinstance(images, Tensor) and images[0].nbytes <= _shrunk_bytes(backbone, images):
        return images[index].contiguous()
    # A few at a time: many photos at full size would not fit into memory.
    parts = [backbone.shrink(images[part]).cpu() for part in index.split(BATCH_SIZE)]
    return torch.cat(parts).contiguous()


def image_bytes(backbone: Backbone, images: ImageSequence) -> int:
    """Return the bytes of what `kept_images` returns for all images."""
    one = _shrunk_bytes(backbone, images)
    return len(images) * (min(one, images[0].nbytes) if isinstance(images, Tensor) else one)


def _shrunk_bytes(backbone: Backbone, images: ImageSequence) -> int:
    return backbone.shrink(images[torch.tensor([0])])[0].nbytes


def draw(targets: Tensor, size: int, excluded: Tensor, rng: torch.Generator) -> Tensor:
    """Select samples at random, size / U for each of U classes.

    A class with fewer samples contributes all of them; the remainder of the division goes to the
    first classes.

    Args:
        targets: Class indices of the task.
        size: Number of samples to select.
        excluded: Positions that are not selected.
        rng: Source of random numbers.

    Returns:
        Positions in the task.
    """
    order = torch.randperm(len(targets), generator=rng)
    order = order[~torch.isin(order, excluded)]
    classes = targets.unique().tolist()
    share, extra = divmod(size, len(classes))
    return torch.cat(
        [order[targets[order] == label][: share + (i < extra)] for i, label in enumerate(classes)]
    )


def herd(
    latents: Tensor, targets: Tensor, size: int, distributed: Distributed = SINGLE_PROCESS
) -> Tensor:
    """Select the samples nearest to their class centre, size / U for each of U classes.

    μ_y is the mean latent of class y; the samples with the smallest ‖μ_y − F σ(v)‖ are selected. A
    class with fewer samples contributes all of them; the remainder of the division goes to the
    first classes.

    Args:
        latents: (n, latent), of this process's share.
        targets: Class indices of the whole task.
        size: Number of samples to select.
        distributed: The processes that select together.

    Returns:
        Positions in the task.

    >>> herd(torch.tensor([[0.0], [1.0], [5.0], [7.0]]), torch.tensor([0, 0, 1, 1]), size=2)
    tensor([0, 2])
    """
    classes = targets.unique().tolist()
    share, extra = divmod(size, len(classes))
    start, selected = distributed.start(len(latents)), []
    for i, label in enumerate(classes):
        members = (targets == label).nonzero().squeeze(1)
        local = members[(members >= start) & (members < start + len(latents))] - start
        distance = _centre_distances(latents, local.to(latents.device), len(members), distributed)
        nearest = distance.argsort(stable=True)[: share + (i < extra)]
        selected.append(members[nearest.cpu()])
    return torch.cat(selected)


def _centre_distances(
    latents: Tensor, local: Tensor, count: int, distributed: Distributed
) -> Tensor:
    """Return the distance of each of a class's `count` samples to their mean.

    `local` are the rows of this process. The latents may not fit into memory.
    """
    chunks = local.split(chunk_rows(latents.shape[1]))
    total = torch.stack([latents[chunk].sum(0) for chunk in chunks]).sum(0)
    centre = distributed.all_reduce(total) / count
    distances = [(latents[chunk] - centre).norm(dim=1) for chunk in chunks]
    return distributed.all_gather(torch.cat(distances))
