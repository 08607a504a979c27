"""RanPAC: ridge regression on random features, with or without tuning on the first task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.base import Baseline, FrozenFeatures
from remembering.baselines.first_session import FirstSession, ModelFeatures
from remembering.errors import RememberingError
from remembering.runtime.seeding import generator, permutation

RIDGES = tuple(10.0**power for power in range(-8, 9))
BLOCK = 1024
"""Rows of a kernel matrix that are computed at once."""


class RandomProjection(Baseline):
    """Decorrelate class prototypes in a random space that is wider than the features.

    h(x) = ReLU(f(x) W) with W (dim, projection) drawn once from N(0, 1). Over all images so far

        G = Σ h hᵀ,   C = Σ h yᵀ   (y one-hot),   ŷ = argmax h(x)ᵀ (G + λ I)⁻¹ C.

    λ is selected for each task among 10⁻⁸ ... 10⁸, as in the authors' code: fitted to four fifths
    of the task's training images alone, it is the value with the smallest squared error on the
    remaining fifth. W has 10,000 columns (`projection`), as in the paper.

    Adaptation: G and C are kept as factors, G = Fᵀ F and C = Fᵀ T, where F (rows, projection) has
    at most `projection` rows. As long as there are fewer images than that, the rows are the images,
    and (G + λ I)⁻¹ C = Fᵀ (F Fᵀ + λ I)⁻¹ T is a smaller system.
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
        held_out, fitted = order[:cut], order[cut:]
        ridge = best_ridge((hidden[fitted], one_hot[fitted]), (hidden[held_out], one_hot[held_out]))
        if "factor" in self.tensors:
            before = self.tensors["factor"].double(), self.tensors["factor.targets"].double()
            new = one_hot.shape[1] - before[1].shape[1]
            hidden = torch.cat([before[0], hidden])
            one_hot = torch.cat([F.pad(before[1], (0, new)), one_hot])
        if len(hidden) > width:
            rotation, hidden = torch.linalg.qr(hidden)
            one_hot = rotation.mT @ one_hot
        # Rounded before it is used, so that a method that was loaded continues with the same bits.
        kept = {"factor": hidden.float(), "factor.targets": one_hot.float()}
        self.tensors |= {name: value.contiguous() for name, value in kept.items()}
        weight = ridge_weight(kept["factor"].double(), kept["factor.targets"].double(), ridge)
        if weight is None:
            raise RememberingError(
                f"RanPAC cannot be solved with a ridge of {ridge}; try a smaller projection"
            )
        self.extra_state["ridge"] = ridge
        # Contiguous as after loading: the rounding of a product depends on the layout of tensors.
        self.tensors["weight"] = weight.float().contiguous()

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


Rows = tuple[Tensor, Tensor]


def best_ridge(fitted: Rows, held_out: Rows) -> float:
    """Return the ridge whose solution has the smallest squared error on held-out rows.

    Args:
        fitted: Random features (n, projection) and one-hot targets (n, classes).
        held_out: The same of other images.
    """
    values, vectors = torch.linalg.eigh(fitted[0] @ fitted[0].mT)
    cross = held_out[0] @ fitted[0].mT @ vectors
    targets = vectors.mT @ fitted[1]
    errors = {
        ridge: F.mse_loss(cross @ (targets / (values.clamp_min(0) + ridge)[:, None]), held_out[1])
        for ridge in RIDGES
    }
    return min(errors, key=lambda ridge: float(errors[ridge]))


def ridge_weight(factor: Tensor, targets: Tensor, ridge: float) -> Tensor | None:
    """Return Fᵀ (F Fᵀ + λ I)⁻¹ T, or None if the matrix is not positive definite after rounding."""
    kernel = factor.new_zeros(len(factor), len(factor))
    for rows in torch.arange(len(factor)).split(BLOCK):  # the Cholesky factor reads one triangle
        first, end = int(rows[0]), int(rows[-1]) + 1
        torch.mm(factor[first:end], factor[:end].mT, out=kernel[first:end, :end])
    kernel.diagonal().add_(ridge)
    root, failed = torch.linalg.cholesky_ex(kernel)
    return None if failed else factor.mT @ torch.cholesky_solve(targets, root)
