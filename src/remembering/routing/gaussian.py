"""The default router: one Gaussian per class on deep features, one covariance for all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.errors import RememberingError
from remembering.routing.base import Expert, Router, conformal
from remembering.routing.logit_correction import fit_logit_correction
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.mmap_buffer import chunk_rows

USUAL_PER_TASK = 64
"""Feature vectors kept of each task: what usual images look like, for novelty."""
USUAL_AT_MOST = 4096
"""Of all tasks' together, so many are compared with."""
REPLAYED_AT_MOST = 16384
"""The same, if boundaries are logit_correction on them."""
REFIT_EACH = 64
"""Up to so many tasks, the temperature is fitted anew at each; then at every sixteenth more."""
TEMPERATURES = [2 ** (i / 4) for i in range(29)]
MAX_DIM = 16384  # the covariance and its factor are (dim, dim) in float64


class GaussianRouter(Router):
    """p(x | class c) = N(μ_c, Σ), with μ_c a class's mean and Σ shared by all classes of all tasks.

    Kept are running sums: of each class its count and sum, of everything the scatter within
    classes. They need one pass without gradients, are the same in any order, and add up over
    batches and processes. Σ is shrunk towards its own diagonal as if `dim` more images had said
    so: Σ = (W + dim · diag(W) / N) / (N + dim), which fades as images arrive.

    An expert's error is −log p(x | its task) up to what is the same for all tasks, at the
    temperature that fits images which were left out.

    >>> from remembering.config import RouterSettings
    >>> router = GaussianRouter(RouterSettings())
    >>> x, rng = torch.randn(40, 6), torch.Generator()
    >>> router.add(0, router.fit(x, torch.arange(40) % 2, rng))
    >>> router.add(1, router.fit(x + 9, torch.arange(40) % 3, rng))
    >>> router.score(x[:4] + 9).argmin(1), router.class_logits(x[:4]).shape
    (tensor([1, 1, 1, 1]), torch.Size([4, 5]))
    """

    is_class_conditional = True
    _fitted: _Fitted | None = None

    def fit(
        self,
        features: Tensor,
        targets: Tensor,
        rng: torch.Generator,
        distributed: Distributed = SINGLE_PROCESS,
    ) -> Expert:
        dim = features.shape[1]
        if dim > MAX_DIM:
            raise RememberingError(
                f"a gaussian router on {dim} features is too large; use fewer router.layers or "
                'router.tokens = "pooled"'
            )
        targets = targets.to(features.device)
        start = distributed.start(len(features))
        own = targets[start : start + len(features)]
        parts = _class_sums(features, own, int(targets.max()) + 1)
        counts, sums = (distributed.all_reduce(part) for part in parts)
        scatter = distributed.all_reduce(_scatter(features, own, sums / counts[:, None]))
        kept = max(USUAL_PER_TASK, self.settings.replay)
        order = torch.randperm(len(targets), generator=rng)[:kept].sort().values
        order = order.to(features.device)
        here = order[(order >= start) & (order < start + len(features))] - start
        return {
            "counts": counts,
            "sums": sums,
            "scatter": scatter,
            "usual": distributed.all_gather(features[here].half()),
            "usual_class": targets[order],
        }

    def add(self, task: int, expert: Expert) -> None:
        kept = dict(expert)
        scatter, count = kept.pop("scatter"), kept["counts"].sum()
        if self.shared:
            scatter = self.shared["scatter"] + scatter
            count = self.shared["count"] + count
        self.shared = {**self.shared, "scatter": scatter, "count": count}
        self.shared.pop("logit_correction", None)
        super().add(task, kept)
        # The temperature takes a comparison of all tasks. That a task costs the same however many
        # there are, this is not done for each of many.
        tasks = len(self.experts)
        if tasks <= REFIT_EACH or tasks % (tasks // 16) == 0:
            # Stored, so that removing a task changes no other's answers.
            fitted = self._fit()
            fitted.temperature = fitted.best_temperature()
            self.shared["temperature"] = torch.tensor(fitted.temperature, dtype=torch.float64)
        if self.settings.replay:
            self.shared["logit_correction"] = self._fit().logit_correction()
            self.changed()

    def check_refinable(self) -> None:
        """They can."""

    def refine(self, task: int, features: Tensor, targets: Tensor) -> None:
        """Add to the sums, as if the images had been there from the first."""
        expert, targets = self.experts[task], targets.to(features.device)
        counts, sums = _class_sums(features, targets, len(expert["counts"]))
        before, after = expert["counts"], expert["counts"] + counts
        means = sums / counts.clamp_min(1)[:, None]
        # Two parts of a class also scatter about their common mean (Chan et al., 1979).
        apart = (means - expert["sums"] / before[:, None]) * (before * counts / after).sqrt()[
            :, None
        ]
        within = _scatter(features, targets, means)
        scatter = self.shared["scatter"] + within + apart.mT @ apart
        self.shared |= {"scatter": scatter, "count": self.shared["count"] + counts.sum()}
        self.experts[task] = {**expert, "counts": after, "sums": expert["sums"] + sums}
        self.changed()

    def remove(self, task: int) -> None:
        """Drop the classes of a task. What it said of the spread within classes, which belongs to
        no class, stays: so the others answer as before."""
        if "logit_correction" in self.shared:
            others = self._fit().owner != list(self.experts).index(task)
            self.shared["logit_correction"] = self.shared["logit_correction"][others]
        super().remove(task)

    def score(self, features: Tensor) -> Tensor:
        return self._errors(self.class_logits(features))

    def scores_and_logits(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = self.class_logits(features)
        return self._errors(logits).cpu(), logits.cpu()

    def class_logits(self, features: Tensor) -> Tensor:
        return self._fit().logits(features)

    def ood_score(self, features: Tensor) -> Tensor:
        return self._fit().ood_score(features)

    def novelty(self, features: Tensor) -> Tensor:
        fitted = self._fit()
        return conformal(fitted.ood_score(features), fitted.usual)

    def encode(self, features: Tensor, expert: Expert) -> Tensor:
        return features

    def changed(self) -> None:
        self._fitted = None

    def _errors(self, logits: Tensor) -> Tensor:
        return -_logsumexp(logits, self._fit().owner, len(self.experts))

    def _fit(self) -> _Fitted:
        if self._fitted is None:
            at_most = REPLAYED_AT_MOST if self.settings.replay else USUAL_AT_MOST
            self._fitted = _Fitted(list(self.experts.values()), self.shared, at_most)
        return self._fitted


class _Fitted:
    """What follows from the sums; computed when it is needed, kept until they change."""

    def __init__(self, experts: list[Expert], shared: Expert, at_most: int):
        self.experts = experts
        self.at_most = at_most
        self.counts = torch.cat([expert["counts"] for expert in experts])
        self.means = torch.cat([expert["sums"] for expert in experts]) / self.counts[:, None]
        sizes = torch.tensor([len(expert["counts"]) for expert in experts])
        self.owner = torch.arange(len(experts)).repeat_interleave(sizes).to(self.means.device)
        self.temperature = float(shared.get("temperature", 1.0))
        self.within = _Shape(shared["scatter"], float(shared["count"]))
        self.change = shared.get("logit_correction")

    @cached_property
    def _whitened(self) -> Tensor:
        """The means in the coordinates in which Σ is the identity."""
        return self.within.whiten(self.means)

    @cached_property
    def _linear(self) -> tuple[Tensor, Tensor]:
        """Weights and biases of log N(x; μ_c, Σ) / T without what is the same for all classes."""
        weight = self._whitened @ self.within.factor / self.temperature
        bias = -0.5 * self._whitened.square().sum(1) / self.temperature
        if self.change is None:
            return weight, bias
        return weight + self.change[:, :-1], bias + self.change[:, -1]

    def logits(self, features: Tensor) -> Tensor:
        weight, bias = self._linear
        return features.double() @ weight.mT + bias

    @cached_property
    def _background(self) -> tuple[_Shape, Tensor]:
        """One Gaussian of everything: the spread within classes and that of their means."""
        total = self.counts.sum()
        centre = (self.counts @ self.means) / total
        between = (self.means - centre) * self.counts[:, None].sqrt()
        return _Shape(self.within.scatter + between.mT @ between, self.within.count), centre

    def ood_score(self, features: Tensor) -> Tensor:
        """The Mahalanobis distance to the nearest class, less that to the background.

        Relative Mahalanobis distance (Ren et al., 2021, arXiv:2106.09022): what is far from
        everything by what all images vary in is not strange.
        """
        x = features.double()
        background, centre = self._background
        nearest = _squared(self.within.whiten(x), self._whitened)
        return nearest.min(1).values - background.whiten(x - centre).square().sum(1)

    @cached_property
    def _kept(self) -> tuple[Tensor, Tensor, Tensor]:
        """Kept features of all tasks, the class of each, and its distances to all classes.

        The distances are those to a model that has not learned the image. Leaving one image out of
        the sums is a change of rank one, so it has a closed form (Sherman and Morrison, 1950).
        """
        share = max(4, self.at_most // len(self.experts))
        starts = [0, *itertools.accumulate(len(expert["counts"]) for expert in self.experts)]
        every = math.ceil(len(self.experts) * share / self.at_most)
        asked = list(zip(self.experts, starts, strict=False))[::every]
        x = torch.cat([expert["usual"][:share] for expert, _ in asked]).double()
        own = torch.cat([expert["usual_class"][:share] + start for expert, start in asked])
        return x, own, self.within.without_one(x, self._whitened, own, self.counts[own])

    def best_temperature(self) -> float:
        """T ≥ 1 that makes the probabilities of the kept images most likely.

        With about as many features as images, Gaussians are far too sure of themselves.
        """
        _, own, distances = self._kept

        @cache
        def loss(i: int) -> float:
            if not 0 <= i < len(TEMPERATURES):
                return math.inf
            return float(F.cross_entropy(-distances / (2 * TEMPERATURES[i]), own))

        # The loss is convex in 1 / T, so the way down from the last best ends at the best.
        best = min(range(len(TEMPERATURES)), key=lambda i: abs(TEMPERATURES[i] - self.temperature))
        while loss(best - 1) <= loss(best):
            best -= 1
        while loss(best + 1) < loss(best):
            best += 1
        return TEMPERATURES[best]

    def logit_correction(self) -> Tensor:
        """What to add to weights and biases, side by side, so that they tell kept images apart.

        Each is asked as if it were not learned: what the Gaussians know by heart teaches nothing.
        """
        x, own, distances = self._kept
        change = fit_logit_correction(
            -distances / (2 * self.temperature), self.within.whiten(x), own
        )
        return torch.cat([change[:, :-1] @ self.within.factor, change[:, -1:]], dim=1)

    @cached_property
    def usual(self) -> Tensor:
        """Strangeness of the kept images, sorted: each as if it were not learned."""
        x, own, distances = self._kept
        background, centre = self._background
        total = self.counts.sum().expand(len(x))
        zero = torch.zeros_like(own)
        alone = background.without_one(x, background.whiten(centre[None]), zero, total)[:, 0]
        return (distances.min(1).values - alone).sort().values


@dataclass
class _Shape:
    """A covariance from the scatter of `count` images, shrunk towards its diagonal."""

    scatter: Tensor
    count: float

    @cached_property
    def factor(self) -> Tensor:
        """R with Σ⁻¹ = RᵀR."""
        dim = len(self.scatter)
        spread = self.scatter.diagonal()
        # A feature that never varies, such as the CLS token of state 0, must not divide by zero.
        floor = max(1e-6 * float(spread.mean()), 1e-12)
        prior = (spread / self.count).clamp_min(floor / self.count) * dim
        sigma = (self.scatter + prior.diag()) / (self.count + dim)
        root = torch.linalg.cholesky(sigma)
        eye = torch.eye(dim, dtype=root.dtype, device=root.device)
        inverse: Tensor = torch.linalg.solve_triangular(root, eye, upper=False)
        return inverse

    def whiten(self, x: Tensor) -> Tensor:
        """x in the coordinates in which Σ is the identity."""
        return x @ self.factor.mT

    def without_one(self, x: Tensor, m: Tensor, own: Tensor, counts: Tensor) -> Tensor:
        """Squared distances (n, means) of x to means, had each x not been counted in its own.

        Args:
            m: the means, whitened.
            own: for each x, the mean that it is part of.
            counts: how many images that mean has.
        """
        z = self.whiten(x)
        residual = z - m[own]
        # W loses a · r rᵀ with a = n / (n − 1); in whitened coordinates Σ is (W + prior) / weight.
        weight = self.count + len(self.scatter)
        gain = counts / (counts - 1) / weight
        leverage = residual.square().sum(1)
        scale = gain / (1 - gain * leverage).clamp_min(1e-6)
        along = (z * residual).sum(1, keepdim=True) - residual @ m.mT
        distances = _squared(z, m) + scale[:, None] * along.square()
        grown = (counts / (counts - 1)).square()  # x − μ grows when μ moves away from x
        rows = torch.arange(len(x), device=x.device)
        distances[rows, own] = grown * (leverage + scale * leverage.square())
        return distances


def _class_sums(features: Tensor, targets: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """How many images each class has (classes,), and the sum of their features (classes, dim)."""
    counts = torch.bincount(targets, minlength=classes).double()
    sums = counts.new_zeros(classes, features.shape[1])
    for x, y in _chunks(features, targets):
        sums.index_add_(0, y, x.double())
    return counts, sums


def _scatter(features: Tensor, targets: Tensor, means: Tensor) -> Tensor:
    """Σ (x − μ)(x − μ)ᵀ over all images, with μ the mean of an image's class: (dim, dim)."""
    scatter = means.new_zeros(means.shape[1], means.shape[1])
    for x, y in _chunks(features, targets):
        residual = x.double() - means[y]
        scatter.addmm_(residual.mT, residual)
    return scatter


def _chunks(features: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """A few at a time: all in float64 could be more than there is memory."""
    size = chunk_rows(features.shape[1])
    return zip(features.split(size), targets.split(size), strict=True)


def _squared(x: Tensor, y: Tensor) -> Tensor:
    """‖x − y‖² for all pairs: (n, m)."""
    return x.square().sum(1, keepdim=True) - 2 * x @ y.mT + y.square().sum(1)


def _logsumexp(logits: Tensor, owner: Tensor, groups: int) -> Tensor:
    """log Σ exp over the columns of each group: (n, groups)."""
    index = owner.expand(len(logits), -1)
    low = logits.new_full((len(logits), groups), float("-inf"))
    top = low.scatter_reduce(1, index, logits, "amax")
    sums = torch.zeros_like(top).scatter_add(1, index, (logits - top.gather(1, index)).exp())
    return top + sums.log()
