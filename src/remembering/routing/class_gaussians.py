"""Values derived from the running sums of a Gaussian router: logits, OOD scores, calibration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.errors import RememberingError
from remembering.routing.base import Expert
from remembering.routing.logit_correction import fit_logit_correction
from remembering.routing.symmetric import restore
from remembering.runtime.mmap_buffer import chunk_rows

TEMPERATURES = [2 ** (i / 4) for i in range(29)]


@dataclass(frozen=True, eq=False)
class Covariance:
    """The covariance of `count` samples with a given scatter, shrunk towards its diagonal.

    Attributes:
        scatter: Returns a new copy of W = Σ (x − μ)(x − μ)ᵀ, (dim, dim). It is large, and not kept.
        count: Number of samples N.
        shrinkage: Weight c of the diagonal: Σ = (W + c · dim · diag(W) / N) / (N + c · dim).
    """

    scatter: Callable[[], Tensor]
    count: float
    shrinkage: float = 1.0

    @cached_property
    def factor(self) -> Tensor:
        """R with Σ⁻¹ = RᵀR."""
        sigma = self.scatter()
        spread = sigma.diagonal()
        # The lower bound keeps the rounding of stored correlations from making Σ indefinite.
        weight = max(self.shrinkage * len(sigma), 1e-3 * self.count)
        # A constant feature, such as the CLS token of state 0, must not cause a division by zero.
        floor = max(1e-6 * float(spread.mean()), 1e-12)
        spread += (spread / self.count).clamp_min(floor / self.count) * weight
        sigma /= self.count + weight
        try:
            root = torch.linalg.cholesky(sigma, out=sigma)
        except RuntimeError as error:  # torch's LinAlgError
            raise RememberingError(
                "the covariance of the gaussian router is not positive definite; the stored "
                "router is damaged: restore the model from a copy"
            ) from error
        eye = torch.eye(len(root), dtype=root.dtype, device=root.device)
        inverse: Tensor = torch.linalg.solve_triangular(root, eye, upper=False, out=eye)
        return inverse

    def whiten(self, x: Tensor) -> Tensor:
        """Transform x to the coordinates in which Σ is the identity."""
        return x @ self.factor.mT


def subtract(kept: Expert, part: Tensor, count: float, shrinkage: float = 1.0) -> Tensor:
    """Return a scatter matrix (dim, dim) without a part of it.

    The rounding of both is large compared with what remains if little remains. A result that is
    not usable as the covariance of the remaining `count` samples is replaced by the nearest scatter
    matrix.
    """
    rest = restore(kept).sub_(part)
    rest.diagonal().clamp_(min=0)
    try:
        # Half of the prior: the result will be rounded once more.
        _ = Covariance(rest.clone, count, shrinkage / 2).factor
        return rest
    except RememberingError:
        scale = rest.diagonal().sqrt().clamp_min(1e-30)
        values, vectors = torch.linalg.eigh(rest / scale / scale[:, None])
        nearest: Tensor = (vectors * values.clamp_min(0)) @ vectors.mT
        return nearest * scale * scale[:, None]


class ClassGaussians:
    """Gaussians of all classes of all tasks; expensive parts are computed once, on first use.

    Args:
        experts: Experts of a `GaussianRouter`.
        covariance: The covariance that all classes share.
        temperature: Divides the log-likelihoods.
        logit_correction: Added to weights and biases, (classes, dim + 1).
        max_calibration: Upper bound on the calibration vectors that are used.
    """

    def __init__(
        self,
        experts: Sequence[Expert],
        covariance: Covariance,
        temperature: float,
        logit_correction: Tensor | None,
        max_calibration: int,
    ):
        self.experts = experts
        self.covariance = covariance
        self.temperature = temperature
        self.logit_correction = logit_correction
        self.max_calibration = max_calibration
        self.counts = torch.cat([expert["counts"] for expert in experts])
        sums = torch.cat([expert["sums"] for expert in experts]).double()
        self.means = sums / self.counts[:, None]
        sizes = torch.tensor([len(expert["counts"]) for expert in experts])
        self.owner = torch.arange(len(experts)).repeat_interleave(sizes).to(self.means.device)

    @cached_property
    def _whitened(self) -> Tensor:
        return self.covariance.whiten(self.means)

    @cached_property
    def _linear(self) -> tuple[Tensor, Tensor]:
        """Weights and biases of log N(x; μ_c, Σ) / T without the terms common to all classes."""
        weight = self._whitened @ self.covariance.factor / self.temperature
        bias = -0.5 * self._whitened.square().sum(1) / self.temperature
        if self.logit_correction is None:
            return weight, bias
        return weight + self.logit_correction[:, :-1], bias + self.logit_correction[:, -1]

    def logits(self, features: Tensor) -> Tensor:
        """Return log-likelihoods (n, classes) up to a constant."""
        weight, bias = self._linear
        return features.double() @ weight.mT + bias

    @cached_property
    def background(self) -> tuple[Covariance, Tensor]:
        """One Gaussian of all images: the scatter within classes and that of their means."""
        total = self.counts.sum()
        centre = (self.counts @ self.means) / total
        between = (self.means - centre) * self.counts[:, None].sqrt()
        within = self.covariance.scatter
        return replace(
            self.covariance, scatter=lambda: within().addmm_(between.mT, between)
        ), centre

    def ood_scores(self, features: Tensor) -> Tensor:
        """Return the Mahalanobis distance to the nearest class minus that to the background.

        Relative Mahalanobis distance (Ren et al., 2021, arXiv:2106.09022): variation that all
        images share does not count as novelty.
        """
        x = features.double()
        background, centre = self.background
        nearest = _squared_distances(self.covariance.whiten(x), self._whitened)
        return nearest.min(1).values - background.whiten(x - centre).square().sum(1)

    @cached_property
    def _calibration(self) -> tuple[Tensor, Tensor, Tensor]:
        """Calibration features of all tasks, their classes, and squared distances to all classes.

        The images are not part of the sums, so these are distances of images not learned from.
        """
        share = max(4, self.max_calibration // len(self.experts))
        starts = [0, *itertools.accumulate(len(expert["counts"]) for expert in self.experts)]
        every = math.ceil(len(self.experts) * share / self.max_calibration)
        used = list(zip(self.experts, starts, strict=False))[::every]
        x = torch.cat([expert["calibration_features"][:share] for expert, _ in used]).double()
        owner = torch.cat([e["calibration_targets"][:share] + start for e, start in used])
        return x, owner, _squared_distances(self.covariance.whiten(x), self._whitened)

    def best_temperature(self) -> float:
        """Return the T ≥ 1 that maximises the likelihood of the calibration images.

        With about as many features as images, Gaussians are overconfident.
        """
        _, owner, distances = self._calibration
        if not len(owner):
            return self.temperature

        @cache
        def loss(i: int) -> float:
            if not 0 <= i < len(TEMPERATURES):
                return math.inf
            return float(F.cross_entropy(-distances / (2 * TEMPERATURES[i]), owner))

        # The loss is convex in 1 / T: descending from the previous optimum finds the new one.
        best = min(range(len(TEMPERATURES)), key=lambda i: abs(TEMPERATURES[i] - self.temperature))
        while loss(best - 1) <= loss(best):
            best -= 1
        while loss(best + 1) < loss(best):
            best += 1
        return TEMPERATURES[best]

    def fit_correction(self) -> Tensor:
        """Fit the logit correction on the calibration images."""
        x, owner, distances = self._calibration
        logits, whitened = -distances / (2 * self.temperature), self.covariance.whiten(x)
        correction = fit_logit_correction(logits, whitened, owner)
        return torch.cat([correction[:, :-1] @ self.covariance.factor, correction[:, -1:]], dim=1)

    @cached_property
    def calibration_margins(self) -> Tensor:
        """Margins of the calibration images, sorted."""
        distances = self._calibration[2]
        if distances.shape[1] < 2:
            return distances.new_full((len(distances),), math.inf)
        nearest = distances.topk(2, dim=1, largest=False).values
        return ((nearest[:, 1] - nearest[:, 0]) / (2 * self.temperature)).sort().values

    @property
    def min_spread(self) -> float:
        """Lower bound on the standard deviation of few OOD scores.

        An eighth of the number of features, somewhat more than the spread of scores of tasks with
        many images: after a small first task, images such as drawings on a canvas would otherwise
        be flagged too often.
        """
        return self.means.shape[1] / 8

    @cached_property
    def calibration_scores(self) -> Tensor:
        """OOD scores of the calibration images, sorted."""
        return self.ood_scores(self._calibration[0]).sort().values


def class_sums(
    features: Tensor, targets: Tensor, rows: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Return the number of images of each class (classes,) and their sums (classes, dim).

    Args:
        features: (n, dim).
        targets: Class indices, (n,).
        rows: Mask of the images that count, (n,).
        classes: Number of classes.
    """
    counts = torch.bincount(targets[rows], minlength=classes).double()
    sums = counts.new_zeros(classes, features.shape[1])
    for x, y, counted in _chunks(features, targets, rows):
        sums.index_add_(0, y[counted], x[counted].double())
    return counts, sums


def scatter_within(views: Sequence[Tensor], targets: Tensor, rows: Tensor, means: Tensor) -> Tensor:
    """Return Σ (x − μ)(x − μ)ᵀ (dim, dim) over the masked images, with μ the mean of the class.

    Args:
        views: Features (n, dim) of one or more views of the images.
        targets: Class indices, (n,).
        rows: Mask of the images that count, (n,).
        means: Means of the classes, (classes, dim).
    """
    scatter = means.new_zeros(means.shape[1], means.shape[1])
    for view in views:
        for x, y, counted in _chunks(view, targets, rows):
            residual = x[counted].double().sub_(means[y[counted]])
            scatter.addmm_(residual.mT, residual)
    return scatter


def _chunks(
    features: Tensor, targets: Tensor, rows: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Iterate over a few rows at a time: all of them in float64 may not fit into memory."""
    size = chunk_rows(features.shape[1])
    return zip(features.split(size), targets.split(size), rows.split(size), strict=True)


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Return ‖x − y‖² for all pairs: (n, m)."""
    return x.square().sum(1, keepdim=True) - 2 * x @ y.mT + y.square().sum(1)
