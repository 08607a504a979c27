"""Domains: the images that an adapter serves, and a test whether a new task belongs to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from scipy.stats import t as student_t  # type: ignore[import-untyped]
from torch import Tensor

from remembering.routing.base import Expert, Layout, check_layout
from remembering.routing.class_gaussians import Covariance, subtract
from remembering.routing.symmetric import (
    check_compressed,
    compress,
    compressed_layout,
    restore,
)
from remembering.runtime.mmap_buffer import chunk_rows

SIGNIFICANCE = 1e-3
MIN_EFFECT = 2.0
"""A task is novel to a domain if its p-value is below the one and its effect size above the other.
Both were chosen on training images by `scripts/study_novelty.py`: with many classes, tasks of one
data set differ significantly, but not by much."""
Moments = tuple[Tensor, Tensor, Tensor]
"""Count, mean and scatter of some images."""


@dataclass(frozen=True, eq=False)
class Domain:
    """One Gaussian of all images that an adapter serves, on the router's features.

    The novelty of a class is the mean log Mahalanobis distance of its images. `references` are the
    novelties that the classes of the domain had before they were learned. A task is compared with
    them by a one-sided t-test and Cohen's d: classes of the same domain are about as novel as
    earlier classes were.

    Attributes:
        count: Number of images.
        mean: Their mean, (dim,).
        spread: Their scatter about the mean, as `routing.symmetric` keeps it.
        correlation: The same.
        references: Novelty of each class when it was new, (classes,).
    """

    count: Tensor
    mean: Tensor
    spread: Tensor
    correlation: Tensor
    references: Tensor

    @classmethod
    def of(cls, features: Tensor, targets: Tensor) -> Domain:
        """Return the domain of a first task; each class is compared with the other ones."""
        classes = _classes(targets)
        whole = _merge(_moments(features, rows) for rows in classes)
        references = []
        for rows in classes:
            # The moments are computed again: those of all classes may not fit into memory.
            count, mean, lost = _rest(whole, _moments(features, rows))
            scatter = whole[2] - lost
            scatter.diagonal().clamp_(min=0)
            covariance = Covariance(scatter.clone, float(count))
            references.append(_novelty(features, rows, mean, covariance))
        return cls._packed(whole, torch.stack(references))

    def novelties(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return the novelty of each class of a task, (classes,)."""
        covariance = Covariance(partial(restore, vars(self)), float(self.count))
        novelties = [_novelty(features, rows, self.mean, covariance) for rows in _classes(targets)]
        return torch.stack(novelties)

    def p_value(self, novelties: Tensor) -> float:
        """Return the p-value of the hypothesis that classes with these novelties belong here."""
        counts = 1 / len(novelties) + 1 / len(self.references)
        freedom = len(novelties) + len(self.references) - 2
        return float(student_t.sf(self.effect(novelties) / math.sqrt(counts), freedom))

    def effect(self, novelties: Tensor) -> float:
        """Return by how many standard deviations these novelties exceed the references."""
        a, b = novelties, self.references
        spread = (a - a.mean()).square().sum() + (b - b.mean()).square().sum()
        deviation = (spread / (len(a) + len(b) - 2)).sqrt().clamp_min(1e-12)
        return float((a.mean() - b.mean()) / deviation)

    def is_novel(self, novelties: Tensor) -> bool:
        """Return whether a task whose classes have these novelties needs an adapter of its own."""
        return self.p_value(novelties) < SIGNIFICANCE and self.effect(novelties) > MIN_EFFECT

    def joined(self, features: Tensor, novelties: Tensor) -> Domain:
        """Return the domain with the images of another task."""
        merged = _merge([self._moments, _moments(features, torch.arange(len(features)))])
        return self._packed(merged, torch.cat([self.references, novelties]))

    def without(self, classes: Sequence[int], images: int, moments: Moments | None) -> Domain:
        """Return the domain without a task; the references of the other classes remain.

        Args:
            classes: Positions of the task's classes among the references.
            images: Number of images of the task.
            moments: Those of the task. If None, the scatter of the domain is scaled down.
        """
        kept = torch.ones(len(self.references), dtype=torch.bool)
        kept[list(classes)] = False
        references, rest = self.references[kept], self.count - images
        if moments is None:
            spread = self.spread * (rest / self.count).sqrt().float()
            return replace(self, count=rest, spread=spread, references=references)
        rest, mean, lost = _rest((self.count, self.mean), moments)
        scatter = subtract(vars(self), lost, float(rest))
        return self._packed((rest, mean, scatter), references)

    def check(self, dim: int) -> None:
        """Raise ValueError unless the domain, read from a file, fits `dim` features."""
        layout: Layout = {
            "count": (torch.float64, ()),
            "mean": (torch.float64, (dim,)),
            **compressed_layout(dim),
            "references": (torch.float64, (None,)),
        }
        check_layout(vars(self), layout)
        if not self.count >= 1:
            raise ValueError("count is not a number of images")
        check_compressed(vars(self))

    @classmethod
    def _packed(cls, moments: Moments, references: Tensor) -> Domain:
        count, mean, scatter = moments
        return cls(count, mean, **compress(scatter), references=references)

    @property
    def _moments(self) -> Moments:
        return self.count, self.mean, restore(vars(self))


def _classes(targets: Tensor) -> list[Tensor]:
    """Return the rows of each class."""
    return [(targets == label).nonzero().flatten() for label in targets.unique()]


def _chunks(features: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """Iterate over a few rows at a time: all of them in float64 may not fit into memory."""
    return (features[part].double() for part in rows.split(chunk_rows(features.shape[1])))


def _moments(features: Tensor, rows: Tensor) -> Moments:
    def moments(x: Tensor) -> Moments:
        mean = x.mean(0)
        residual = x - mean
        return torch.tensor(float(len(x)), dtype=x.dtype), mean, residual.mT @ residual

    return _merge(moments(x) for x in _chunks(features, rows))


def task_moments(expert: Expert, share: Expert) -> Moments:
    """Return the moments of the images of a task.

    Args:
        expert: Expert of the task in a Gaussian router. Its calibration images are not part of its
            sums, but are images of the task.
        share: What the task added to the scatter of that router.
    """
    counts, sums = expert["counts"].cpu(), expert["sums"].cpu().double()
    mean = sums.sum(0) / counts.sum()
    between = (sums / counts[:, None] - mean) * counts[:, None].sqrt()
    moments = counts.sum(), mean, restore(share) + between.mT @ between
    held_out = expert["calibration_features"].cpu().double()
    return (
        _merge([moments, _moments(held_out, torch.arange(len(held_out)))])
        if len(held_out)
        else moments
    )


def _merge(parts: Iterable[Moments]) -> Moments:
    """Combine the moments of several sets of images (Chan et al., 1979)."""
    iterator = iter(parts)  # one at a time: all of them may not fit into memory
    count, mean, scatter = next(iterator)
    for n, m, s in iterator:
        total, apart = count + n, m - mean
        scatter = (scatter + s).addr_(apart, apart, alpha=float(count * n / total))
        mean, count = mean + apart * (n / total), total
    return count, mean, scatter


def _rest(whole: Sequence[Tensor], part: Moments) -> Moments:
    """Return count and mean without a part, and what to subtract from the scatter.

    The inverse of `_merge`; of the whole, only count and mean are needed.
    """
    (total, whole_mean), (count, mean, scatter) = whole[:2], part
    rest = total - count
    rest_mean = (whole_mean * total - mean * count) / rest
    apart = mean - rest_mean
    return rest, rest_mean, scatter.addr(apart, apart, alpha=float(count * rest / total))


def _novelty(features: Tensor, rows: Tensor, mean: Tensor, covariance: Covariance) -> Tensor:
    logs = [
        covariance.whiten(x - mean).square().sum(1).clamp_min(1e-12).log()
        for x in _chunks(features, rows)
    ]
    return torch.cat(logs).mean()
