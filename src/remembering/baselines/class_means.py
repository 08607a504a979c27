"""Running mean feature and image count of each class, shared by prototype-based methods."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def class_means(tensors: Mapping[str, Tensor], classes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return copies of the means (classes, dim) and counts (classes,) stored in `tensors`.

    Both are 0 for new classes. `like` determines dimension, type and device.
    """
    means = like.new_zeros(classes, like.shape[1])
    counts = torch.zeros(classes, dtype=torch.long, device=like.device)
    if "means" in tensors:
        means[: len(tensors["means"])] = tensors["means"]
        counts[: len(tensors["counts"])] = tensors["counts"]
    return means, counts


def updated_class_means(
    tensors: Mapping[str, Tensor], classes: int, features: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """Return "means" and "counts" after adding the images of a task."""
    means, counts = class_means(tensors, classes, features)
    sums = (means.double() * counts[:, None]).index_add(0, targets, features.double())
    total = counts + targets.bincount(minlength=classes)
    return {"means": (sums / total[:, None]).float(), "counts": total}
