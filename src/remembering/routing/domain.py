"""Domains: the images that an adapter serves, and a test whether a new task belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import t as student_t  # type: ignore[import-untyped]
from torch import Tensor

from remembering.routing.base import Layout, check_layout
from remembering.routing.class_gaussians import Covariance
from remembering.routing.symmetric import pack, packed_size, unpack

SIGNIFICANCE = 1e-3
"""A task is novel to a domain if its p-value is below this."""
Moments = tuple[Tensor, Tensor, Tensor]
"""Count, mean and scatter of some images."""


@dataclass(frozen=True, eq=False)
class Domain:
    """One Gaussian of all images that an adapter serves, on the router's features.

    The novelty of a class is the mean log Mahalanobis distance of its images. `references` are the
    novelties that the classes of the domain had before they were learned. A task is compared with
    them by a one-sided t-test: classes of the same domain are as novel as earlier classes were.

    Attributes:
        count: Number of images.
        mean: Their mean, (dim,).
        scatter: Their scatter about the mean, a packed triangle (`routing.symmetric`).
        references: Novelty of each class when it was new, (classes,).
    """

    count: Tensor
    mean: Tensor
    scatter: Tensor
    references: Tensor

    @classmethod
    def of(cls, features: Tensor, targets: Tensor) -> Domain:
        """Return the domain of a first task; each class is compared with the other ones."""
        parts = [_moments(features[targets == label].double()) for label in targets.unique()]
        classes = [features[targets == label].double() for label in targets.unique()]
        references = [
            _novelty(x, *_merge(parts[:i] + parts[i + 1 :])) for i, x in enumerate(classes)
        ]
        return cls._packed(_merge(parts), torch.stack(references))

    def novelties(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return the novelty of each class of a task, (classes,)."""
        classes = [features[targets == label].double() for label in targets.unique()]
        moments = self._moments
        return torch.stack([_novelty(x, *moments) for x in classes])

    def p_value(self, novelties: Tensor) -> float:
        """Return the p-value of the hypothesis that classes with these novelties belong here."""
        a, b = novelties, self.references
        freedom = len(a) + len(b) - 2
        spread = (a - a.mean()).square().sum() + (b - b.mean()).square().sum()
        error = (spread / freedom * (1 / len(a) + 1 / len(b))).sqrt().clamp_min(1e-12)
        return float(student_t.sf(float((a.mean() - b.mean()) / error), freedom))

    def joined(self, features: Tensor, targets: Tensor, novelties: Tensor) -> Domain:
        """Return the domain with the images of another task."""
        merged = _merge([self._moments, _moments(features.double())])
        return self._packed(merged, torch.cat([self.references, novelties]))

    def check(self, dim: int) -> None:
        """Raise ValueError unless the domain, read from a file, fits `dim` features."""
        layout: Layout = {
            "count": (torch.float64, ()),
            "mean": (torch.float64, (dim,)),
            "scatter": (torch.float64, (packed_size(dim),)),
            "references": (torch.float64, (None,)),
        }
        check_layout(vars(self), layout)
        if not self.count >= 1:
            raise ValueError("count is not a number of images")

    @classmethod
    def _packed(cls, moments: Moments, references: Tensor) -> Domain:
        count, mean, scatter = moments
        return cls(count, mean, pack(scatter), references)

    @property
    def _moments(self) -> Moments:
        return self.count, self.mean, unpack(self.scatter)


def _moments(x: Tensor) -> Moments:
    mean = x.mean(0)
    residual = x - mean
    return torch.tensor(float(len(x)), dtype=x.dtype), mean, residual.mT @ residual


def _merge(parts: Sequence[Moments]) -> Moments:
    """Combine the moments of several sets of images (Chan et al., 1979)."""
    count, mean, scatter = parts[0]
    for n, m, s in parts[1:]:
        total, apart = count + n, m - mean
        scatter = scatter + s + torch.outer(apart, apart) * (count * n / total)
        mean, count = mean + apart * (n / total), total
    return count, mean, scatter


def _novelty(x: Tensor, count: Tensor, mean: Tensor, scatter: Tensor) -> Tensor:
    whitened = Covariance(scatter, float(count)).whiten(x - mean)
    return whitened.square().sum(1).clamp_min(1e-12).log().mean()
