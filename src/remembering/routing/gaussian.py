"""The default router: one Gaussian per class on deep features, with one shared covariance."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from torch import Tensor

from remembering.config import ClassifierSettings, RouterSettings
from remembering.errors import RememberingError
from remembering.routing.base import Expert, Layout, Router, check_layout
from remembering.routing.calibration import p_values
from remembering.routing.class_gaussians import (
    ClassGaussians,
    Covariance,
    class_sums,
    scatter_within,
    subtract,
)
from remembering.routing.symmetric import (
    check_compressed,
    compress,
    compressed_layout,
    kept_scatter,
    restore,
)
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed

CALIBRATION_SHARE = 6
"""At most one image in this many is held out for calibration."""
CALIBRATION_MIN = 8
"""Of small tasks more are held out, up to this many, but at most a third."""
CALIBRATION_MAX = 4096
"""Upper bound on the calibration vectors of all tasks together."""
REPLAY_MAX = 16384
"""The same, if they also fit the logit correction."""
REFIT_ALWAYS = 64
"""Up to this many tasks the temperature is refitted for every task, then for every sixteenth."""
MAX_DIM = 16384  # the covariance and its factor are (dim, dim) in float64


class GaussianRouter(Router):
    """p(x | class c) = N(μ_c, Σ), with class means μ_c and one Σ for all classes of all tasks.

    The state is running sums: count and sum of each class, and the scatter within classes of all
    tasks. They need one pass without gradients, do not depend on the order, and are additive over
    batches and processes. The scatter is kept as `routing.symmetric` describes. Σ is shrunk
    towards its diagonal with the weight of c · dim samples:
    Σ = (W + c · dim · diag(W) / N) / (N + c · dim), which vanishes as N grows.

    The score of a task is the negative log-likelihood −log p(x | task) up to a constant, at the
    temperature that fits held-out images.

    >>> router = GaussianRouter(RouterSettings())
    >>> x, rng = torch.randn(40, 6), torch.Generator()
    >>> router = router.with_expert(0, router.fit(x, torch.arange(40) % 2, rng))
    >>> router = router.with_expert(1, router.fit(x + 9, torch.arange(40) % 3, rng))
    >>> router.scores(x[:4] + 9).argmin(1), router.class_logits(x[:4]).shape
    (tensor([1, 1, 1, 1]), torch.Size([4, 5]))
    """

    is_class_conditional = True
    score_name = "negative log-likelihood"
    calibration: ClassVar[tuple[int, int]] = (64, 8)
    """Images of the first and of each later task that calibrate temperature and p-values."""

    def __init__(
        self,
        settings: RouterSettings | ClassifierSettings,
        experts: Mapping[int, Expert] = MappingProxyType({}),
        shared: Expert = MappingProxyType({}),
        covariance: Covariance | None = None,
    ):
        super().__init__(settings, experts, shared)
        self._known_covariance = covariance  # of the same scatter: its factor is expensive

    def fit(
        self,
        features: Tensor,
        targets: Tensor,
        rng: torch.Generator,
        distributed: Distributed = SINGLE_PROCESS,
        flipped: Tensor | None = None,
        held_out: Tensor | None = None,
    ) -> Expert:
        """Fit an expert to one task.

        Args:
            features: (n, dim), of this process's share of the task.
            targets: Class indices of the whole task, (total,).
            rng: Source of random numbers.
            distributed: The processes that fit together.
            flipped: Features of the horizontally flipped images: further samples of the classes.
            held_out: Positions of the images that calibrate the router and are not part of the
                sums. If None, `choose_calibration` chooses them.
        """
        dim = features.shape[1]
        if dim > MAX_DIM:
            raise RememberingError(
                f"the gaussian router cannot read {dim} features (at most {MAX_DIM}); use fewer "
                'router.layers or router.tokens = "pooled"'
            )
        if held_out is None:
            held_out = self.choose_calibration(targets, rng)
        held_out = held_out.to(features.device)
        targets = targets.to(features.device)
        start = distributed.start(len(features))
        local = targets[start : start + len(features)]
        here = held_out[(held_out >= start) & (held_out < start + len(features))] - start
        rows = torch.ones(len(features), dtype=torch.bool, device=features.device)
        rows[here] = False
        views = [features] if flipped is None else [features, flipped]
        classes = int(targets.max()) + 1
        parts = [class_sums(view, local, rows, classes) for view in views]
        counts, sums = (
            distributed.all_reduce(sum(part, torch.zeros_like(part[0])))
            for part in zip(*parts, strict=True)
        )
        means = sums / counts[:, None]
        # Rounded as a share is, so that what `forget` subtracts is what was added.
        scatter = compress(distributed.all_reduce(scatter_within(views, local, rows, means)))
        return {
            "counts": counts,
            "sums": sums.float(),
            **scatter,
            "views": torch.tensor(len(views)),
            "calibration_features": distributed.all_gather(features[here].half()),
            "calibration_targets": targets[held_out],
        }

    def choose_calibration(self, targets: Tensor, rng: torch.Generator) -> Tensor:
        """Choose the calibration images: a share of each class that leaves two images of it.

        A router with experts chooses some of those that one without experts chooses with the same
        random numbers.

        Args:
            targets: Class indices of the task.
            rng: Source of random numbers.
        """
        first, later = self.calibration
        most, count = (later if self.experts else first), len(targets)
        share = max(count // CALIBRATION_SHARE, min(CALIBRATION_MIN, count // 3))
        size = min(max(most, self._replay), share)
        order = torch.randperm(count, generator=rng)
        turns = torch.zeros(count, dtype=torch.long)  # the n-th image of its class
        for label in targets.unique():
            own = targets[order] == label
            turns[own] = torch.arange(int(own.sum()))
        order = order[turns.argsort(stable=True)]
        remaining = torch.bincount(targets).tolist()
        chosen: list[int] = []
        for position in order.tolist():
            label = int(targets[position])
            if len(chosen) < size and remaining[label] > 2:
                remaining[label] -= 1
                chosen.append(position)
        return torch.tensor(chosen, dtype=torch.long).sort().values

    @property
    def _replay(self) -> int:
        return getattr(self.settings, "replay", 0)

    def layout(self, dim: int, classes: int) -> Layout:
        return {
            "counts": (torch.float64, (classes,)),
            "sums": (torch.float32, (classes, dim)),
            "calibration_features": (torch.float16, (None, dim)),
            "calibration_targets": (torch.int64, (None,)),
        }

    def check(self, task: int, dim: int, classes: int) -> None:
        expert, layout = self.experts[task], dict(self.layout(dim, classes))
        if "calibration_targets" in expert:  # a small task has none
            count = expert["calibration_targets"].numel()
            layout["calibration_features"] = (torch.float16, (count, dim))
            layout["calibration_targets"] = (torch.int64, (count,))
        check_layout(expert, layout)
        targets = expert["calibration_targets"]
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
            raise ValueError("calibration_targets are not classes of the task")
        if not (expert["counts"] >= 1).all():
            raise ValueError("counts are not numbers of images")

    def check_shared(self, dim: int, classes: int) -> None:
        layout: dict[str, tuple[torch.dtype, tuple[int | None, ...]]] = {}
        if classes:
            layout = dict.fromkeys(("count", "temperature"), (torch.float64, ()))
            layout["views"] = (torch.int64, ())
            layout |= compressed_layout(dim)
        if "logit_correction" in self.shared:
            layout["logit_correction"] = (torch.float64, (classes, dim + 1))
        check_layout(self.shared, layout)
        for name in ("count", "temperature"):
            if classes and not self.shared[name] > 0:
                raise ValueError(f"{name} is not positive")
        if classes and int(self.shared["views"]) not in (1, 2):
            raise ValueError("views is neither 1 nor 2")
        if classes:
            check_compressed(self.shared)

    def with_expert(self, task: int, expert: Expert) -> Self:
        kept = {k: v for k, v in expert.items() if k not in ("spread", "correlation", "views")}
        shared = dict(self.shared)
        shared.pop("logit_correction", None)
        scatter, count = kept_scatter(expert), expert["counts"].sum()
        if self.shared:
            scatter = compress(restore(shared).add_(restore(expert)))
            count = shared["count"] + count
        shared |= {**scatter, "count": count, "views": expert["views"]}
        router = type(self)(self.settings, {**self.experts, task: kept}, shared)
        # Fitting the temperature compares all tasks. To keep the cost per task constant, it is not
        # repeated for each of many tasks.
        tasks = len(router.experts)
        if tasks <= REFIT_ALWAYS or tasks % (tasks // 16) == 0:
            return router.recalibrated()
        return router._corrected()

    def recalibrated(self) -> Self:
        """Return a router with the temperature, and the logit correction, fitted again."""
        temperature = self.gaussians.best_temperature()
        router = self._with_shared(temperature=torch.tensor(temperature, dtype=torch.float64))
        return router._corrected()

    def _corrected(self) -> Self:
        """Return a router with the logit correction fitted, if the settings ask for one."""
        if not self._replay:
            return self
        return self._with_shared(logit_correction=self.gaussians.fit_correction())

    def without_expert(self, task: int, share: Expert | None = None) -> Self:
        """Return a router without a task.

        With its share of the scatter, the router is that of the other tasks alone, up to rounding.
        Without it, the scatter within classes is taken to be alike for all tasks and scaled down:
        the covariance, and thereby the scores of the other tasks, stay as they are.

        Args:
            task: Number of the task.
            share: What the task added to the scatter, as `routing.symmetric` keeps it.
        """
        rest = {number: expert for number, expert in self.experts.items() if number != task}
        if not rest:
            return type(self)(self.settings)
        shared = dict(self.shared)
        if share is not None:
            count = shared["count"] - self.experts[task]["counts"].sum()
            shared.pop("logit_correction", None)
            part = restore(share).to(count.device)
            scatter = subtract(shared, part, float(count), self.settings.shrinkage)
            shared |= {**compress(scatter), "count": count}
            return type(self)(self.settings, rest, shared).recalibrated()
        if "logit_correction" in shared:
            others = self.gaussians.owner != list(self.experts).index(task)
            shared["logit_correction"] = shared["logit_correction"][others]
        return type(self)(self.settings, rest, shared).rescaled()

    def rescaled(self) -> Self:
        """Return a router whose scatter is scaled to the samples that its experts have."""
        if not self.experts:
            return self
        shared = dict(self.shared)
        count = torch.stack([expert["counts"].sum() for expert in self.experts.values()]).sum()
        shared["spread"] = shared["spread"] * (count / shared["count"]).sqrt().float()
        shared["count"] = count
        return type(self)(self.settings, self.experts, shared)

    def check_refinable(self) -> None:
        """No-op: Gaussian experts support refinement."""

    def samples(self, task: int, features: Tensor, targets: Tensor) -> Expert:
        """Return what inputs add to the sums of a task: counts, sums and scatter."""
        expert, targets = self.experts[task], targets.to(features.device)
        rows = torch.ones(len(features), dtype=torch.bool, device=features.device)
        counts, sums = class_sums(features, targets, rows, len(expert["counts"]))
        before, after = expert["counts"], expert["counts"] + counts
        means = sums / counts.clamp_min(1)[:, None]
        # The two parts of a class also scatter about their common mean (Chan et al., 1979).
        weight = (before * counts / after).sqrt()[:, None]
        apart = (means - expert["sums"].double() / before[:, None]) * weight
        within = scatter_within([features], targets, rows, means)
        return {"counts": counts, "sums": sums, "scatter": within.addmm_(apart.mT, apart)}

    def with_samples(self, task: int, samples: Expert) -> Self:
        """Return a router in which `samples` are part of the sums of a task."""
        expert = self.experts[task]
        scatter = restore(self.shared).add_(samples["scatter"])
        count = self.shared["count"] + samples["counts"].sum()
        shared = {**self.shared, **compress(scatter), "count": count}
        refined = {
            **expert,
            "counts": expert["counts"] + samples["counts"],
            "sums": (expert["sums"] + samples["sums"]).float(),
        }
        return type(self)(self.settings, {**self.experts, task: refined}, shared)

    def scores(self, features: Tensor) -> Tensor:
        logits = self.class_logits(features)
        return -grouped_logsumexp(logits, self.gaussians.owner, len(self.experts))

    def class_logits(self, features: Tensor) -> Tensor:
        return self.gaussians.logits(features)

    def ood_scores(self, features: Tensor) -> Tensor:
        return self.gaussians.ood_scores(features)

    def novelty(self, features: Tensor) -> Tensor:
        scores = self.gaussians.ood_scores(features)
        return p_values(scores, self.gaussians.calibration_scores, self.gaussians.min_spread)

    def encode(self, features: Tensor, expert: Expert) -> Tensor:
        return features

    def _with_shared(self, **tensors: Tensor) -> Self:
        """Return a router with other shared tensors that do not affect the covariance."""
        shared = {**self.shared, **tensors}
        return type(self)(self.settings, self.experts, shared, self._covariance)

    @cached_property
    def _covariance(self) -> Covariance:
        if self._known_covariance is not None:
            return self._known_covariance
        count = float(self.shared["count"])
        return Covariance(partial(restore, self.shared), count, self.settings.shrinkage)

    @cached_property
    def gaussians(self) -> ClassGaussians:
        """Class Gaussians, derived from the running sums."""
        return ClassGaussians(
            list(self.experts.values()),
            self._covariance,
            temperature=float(self.shared.get("temperature", 1.0)),
            logit_correction=self.shared.get("logit_correction"),
            max_calibration=REPLAY_MAX if self._replay else CALIBRATION_MAX,
        )


def grouped_logsumexp(logits: Tensor, owner: Tensor, groups: int) -> Tensor:
    """Return log Σ exp over the columns of each group: (n, groups)."""
    index = owner.expand(len(logits), -1)
    low = logits.new_full((len(logits), groups), float("-inf"))
    top = low.scatter_reduce(1, index, logits, "amax")
    sums = torch.zeros_like(top).scatter_add(1, index, (logits - top.gather(1, index)).exp())
    return top + sums.log()
