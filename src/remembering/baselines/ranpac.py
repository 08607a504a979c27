"""RanPAC: ridge regression on random features, with or without tuning on the first task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.base import Baseline, FrozenFeatures
from remembering.baselines.first_session import FirstSession, ModelFeatures
from remembering.errors import RememberingError
from remembering.runtime.seeding import generator, permutation

RIDGES = tuple(10.0**power for power in range(-8, 9))
FIRST_RIDGE = 1e4
"""The ridge from which the search for the first task descends."""
BLOCK = 1024
"""Rows of a kernel matrix that are computed at once."""


class RandomProjection(Baseline):
    """Decorrelate class prototypes in a random space that is wider than the features.

    h(x) = ReLU(f(x) W) with W (dim, projection) drawn once from N(0, 1). Over all images so far

        G = Σ h hᵀ,   C = Σ h yᵀ   (y one-hot),   ŷ = argmax h(x)ᵀ (G + λ I)⁻¹ C.

    λ is selected for each task among 10⁻⁸ ... 10⁸: with four fifths of the task's training images
    added to G and C, it is the value with the smallest squared error on the remaining fifth. Then
    the whole task is added. W has 10,000 columns (`projection`), as in the paper.

    Adaptation: G and C are kept as factors, G = Fᵀ F and C = Fᵀ T, where F (rows, projection) has
    at most `projection` rows. As long as there are fewer images than that, the rows are the images,
    and (G + λ I)⁻¹ C = Fᵀ (F Fᵀ + λ I)⁻¹ T is a smaller system. G and C of earlier tasks take part
    in the selection of λ, where the authors' code uses those of the new task alone: with few images
    of two classes it selects ridges that are far too small. The search descends from the λ of the
    task before, where the authors try all values.
    """

    reference = (
        "McDonnell et al. (2023), RanPAC: random projections and pre-trained models for continual "
        "learning, arXiv:2307.02251"
    )
    defaults: ClassVar[Mapping[str, float]] = {"projection": 10_000}

    def learn_features(self, features: Tensor, targets: Tensor) -> None:
        width = int(self.options["projection"])
        if "projection" not in self.tensors:
            rng = generator(self.settings.seed, "ranpac")
            projection = torch.randn(features.shape[1], width, generator=rng)
            self.tensors["projection"] = projection.to(features.device)
        hidden = self._hidden(features)
        one_hot = F.one_hot(targets, len(self.classes)).to(hidden)
        order = permutation(len(hidden), self.settings.seed, "ranpac", self.learned)
        cut = max(1, len(order) // 5)
        held_out, order = order[:cut], order[cut:]
        factor, values = hidden[order], one_hot[order]
        if "factor" in self.tensors:
            before = self.tensors["factor"].double(), self.tensors["factor.targets"].double()
            new = one_hot.shape[1] - before[1].shape[1]
            factor = torch.cat([before[0], factor])
            values = torch.cat([F.pad(before[1], (0, new)), values])
        factor, values = narrowed(factor, values)
        fitted = len(factor)
        factor = torch.cat([factor, hidden[held_out]])
        values = torch.cat([values, one_hot[held_out]])
        kernel = kernel_matrix(factor)
        ridge = best_ridge(kernel, values, fitted, self.extra_state.get("ridge", FIRST_RIDGE))
        solution = ridge_solution(kernel, values, ridge)
        if solution is None:
            raise RememberingError(
                f"RanPAC cannot be solved with a ridge of {ridge}; try a smaller projection"
            )
        self.extra_state["ridge"] = ridge
        weight = factor.mT @ solution
        factor, values = narrowed(factor, values)
        state = {"factor": factor, "factor.targets": values, "weight": weight}
        # Contiguous as after loading: the rounding of a product depends on the layout of tensors.
        self.tensors |= {name: value.float().contiguous() for name, value in state.items()}

    def feature_scores(self, features: Tensor) -> Tensor:
        return self._hidden(features) @ self.tensors["weight"].double()

    def _hidden(self, features: Tensor) -> Tensor:
        return (features.double() @ self.tensors["projection"].double()).relu()


class RanPAC(RandomProjection, FirstSession):
    """RanPAC as published: f is the backbone with an adapter, tuned on the first task and frozen.

    For equations see `RandomProjection`.

    Adaptation: the adapter is trained as that of the default model, by AdamW on cross entropy, with
    the same rank, steps and augmentation.
    """

    name, title = "ranpac", "RanPAC"
    stores = "one adapter, the random projection, a factor of its Gram matrix, and class weights"


class FrozenRanPAC(RandomProjection, FrozenFeatures):
    """RanPAC without the paper's first phase: f is the frozen backbone.

    For equations see `RandomProjection`.
    """

    name, title = "ranpac_frozen", "RanPAC, frozen"
    stores = "the random projection, a factor of its Gram matrix, and class weights"


class RanPACOurFeatures(RandomProjection, ModelFeatures):
    """RanPAC on the features of the default model.

    For equations see `RandomProjection`, for the features `ModelFeatures`.
    """

    name, title = "ranpac-our-features", "RanPAC, our features"
    stores = RanPAC.stores


def narrowed(factor: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return F and T with the same Fᵀ F and Fᵀ T, and with at most as many rows as columns."""
    if len(factor) <= factor.shape[1]:
        return factor, values
    rotation, factor = torch.linalg.qr(factor)
    return factor, rotation.mT @ values


def kernel_matrix(factor: Tensor) -> Tensor:
    """Return the lower triangle of F Fᵀ, which is all that a Cholesky factorization reads."""
    kernel = factor.new_zeros(len(factor), len(factor))
    for first in range(0, len(factor), BLOCK):
        end = min(first + BLOCK, len(factor))
        kernel[first:end, :end] = factor[first:end] @ factor[:end].mT
    return kernel


def ridge_solution(kernel: Tensor, values: Tensor, ridge: float) -> Tensor | None:
    """Return (F Fᵀ + λ I)⁻¹ T, or None if the matrix is not positive definite after rounding."""
    regular = kernel.clone()
    regular.diagonal().add_(ridge)
    root, failed = torch.linalg.cholesky_ex(regular)
    return None if failed else torch.cholesky_solve(values, root)


def best_ridge(kernel: Tensor, values: Tensor, fitted: int, start: float) -> float:
    """Return a ridge with smaller squared error on held-out rows than the next ones.

    Args:
        kernel: Kernel matrix of fitted and held-out rows; its lower triangle is read.
        values: Targets of these rows.
        fitted: Number of fitted rows, which come first.
        start: The ridge from which the search descends.
    """

    @cache
    def error(i: int) -> float:
        if not 0 <= i < len(RIDGES):
            return math.inf
        solution = ridge_solution(kernel[:fitted, :fitted], values[:fitted], RIDGES[i])
        if solution is None:
            return math.inf
        return float(F.mse_loss(kernel[fitted:, :fitted] @ solution, values[fitted:]))

    best = RIDGES.index(start)
    while error(best + 1) < error(best):
        best += 1
    while error(best - 1) < error(best):
        best -= 1
    return RIDGES[best]
