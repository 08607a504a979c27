"""Change the classes of a Gaussian router: add one, remove one, or combine two routers."""

from __future__ import annotations

from typing import TypeVar

import torch

from remembering.routing.base import Expert
from remembering.routing.class_gaussians import subtract
from remembering.routing.gaussian import GaussianRouter
from remembering.routing.symmetric import compress, restore

R = TypeVar("R", bound=GaussianRouter)


def with_class(router: R, task: int, added: Expert) -> R:
    """Return a router in which a task has one more class.

    Args:
        router: The router.
        task: Number of the task.
        added: An expert that `fit` fitted to the images of the class alone.
    """
    expert = router.experts[task]
    moved = {**added, "calibration_targets": added["calibration_targets"] + len(expert["counts"])}
    extended = {key: torch.cat([value, moved[key]]) for key, value in expert.items()}
    shared = {key: value for key, value in router.shared.items() if key != "logit_correction"}
    shared |= compress(restore(shared).add_(restore(added)))
    shared["count"] = shared["count"] + added["counts"].sum()
    experts = {**router.experts, task: extended}
    return type(router)(router.settings, experts, shared).recalibrated()


def class_expert(expert: Expert, position: int) -> Expert:
    """Return the part of an expert that belongs to one class."""
    rows = expert["calibration_targets"] == position
    return {
        "counts": expert["counts"][position : position + 1],
        "sums": expert["sums"][position : position + 1],
        "calibration_features": expert["calibration_features"][rows],
        "calibration_targets": torch.zeros_like(expert["calibration_targets"][rows]),
    }


def without_class(router: R, task: int, position: int, share: Expert | None) -> R:
    """Return a router in which a task lacks one of its classes.

    The scatter within the class is taken to be that of its task, or without a share that of all
    tasks, in proportion to its images.

    Args:
        router: The router.
        task: Number of the task.
        position: Position of the class within the task.
        share: What the task added to the scatter.
    """
    expert = router.experts[task]
    counts, targets = expert["counts"], expert["calibration_targets"]
    kept = torch.arange(len(counts), device=counts.device) != position
    rows = targets != position
    reduced = {
        "counts": counts[kept],
        "sums": expert["sums"][kept],
        "calibration_features": expert["calibration_features"][rows],
        "calibration_targets": (targets - (targets > position).long())[rows],
    }
    shared = {key: value for key, value in router.shared.items() if key != "logit_correction"}
    count = shared["count"] - counts[position]
    if share is None:
        part = restore(shared) * (counts[position] / shared["count"])
    else:
        part = restore(share).to(count.device) * (counts[position] / counts.sum())
    shared |= compress(subtract(shared, part, float(count), router.settings.shrinkage))
    experts = {**router.experts, task: reduced}
    return type(router)(router.settings, experts, {**shared, "count": count}).recalibrated()


def merged(router: R, other: R) -> R:
    """Return a router with the experts of both, whose task numbers differ."""
    experts = {**router.experts, **other.experts}
    if not (router.shared and other.shared):
        return type(router)(router.settings, experts, router.shared or other.shared)
    shared = {key: value for key, value in router.shared.items() if key != "logit_correction"}
    shared |= compress(restore(router.shared).add_(restore(other.shared)))
    shared["count"] = router.shared["count"] + other.shared["count"]
    return type(router)(router.settings, experts, shared).recalibrated()
