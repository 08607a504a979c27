"""RanPAC: ridge regression on random features, with or without tuning on the first task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.base import Baseline, FrozenFeatures
from remembering.baselines.single_adapter import TunedOnce
from remembering.errors import RememberingError
from remembering.runtime.seeding import generator, permutation

RIDGES = tuple(10.0**power for power in range(-8, 9))


class RandomProjection(Baseline):
    """Decorrelate class prototypes in a random space that is wider than the features.

    h(x) = ReLU(f(x) W) with W (dim, projection) drawn once from N(0, 1). Over all images so far

        G = Σ h hᵀ,   C = Σ h yᵀ   (y one-hot),   ŷ = argmax h(x)ᵀ (G + λ I)⁻¹ C.

    λ is selected for each task among 10⁻⁸ ... 10⁸, as in the paper: with four fifths of the task's
    training images added to G and C, it is the value with the smallest squared error on the
    remaining fifth. Then the whole task is added.

    Adaptation: W has 2,000 columns (`projection`) where the paper has 10,000, because G grows with
    their square. G and C of earlier tasks take part in the selection of λ, where the authors' code
    uses those of the new task alone.
    """

    reference = (
        "McDonnell et al. (2023), RanPAC: random projections and pre-trained models for continual "
        "learning, arXiv:2307.02251"
    )
    defaults: ClassVar[Mapping[str, float]] = {"projection": 2000}

    def learn_features(self, features: Tensor, targets: Tensor) -> None:
        width = int(self.options["projection"])
        if "projection" not in self.tensors:
            rng = generator(self.settings.seed, "ranpac")
            projection = torch.randn(features.shape[1], width, generator=rng)
            self.tensors["projection"] = projection.to(features.device)
        hidden = self._hidden(features)
        one_hot = F.one_hot(targets, len(self.classes)).to(hidden)
        gram = hidden.new_zeros(width, width)
        sums = hidden.new_zeros(width, len(self.classes))
        if "gram" in self.tensors:
            gram += self.tensors["gram"]
            sums[:, : self.tensors["sums"].shape[1]] += self.tensors["sums"]
        order = permutation(len(hidden), self.settings.seed, "ranpac", self.learned)
        cut = max(1, len(order) // 5)
        held_out, fitted = order[:cut], order[cut:]
        part = hidden[fitted]
        fitted_gram, fitted_sums = gram + part.mT @ part, sums + part.mT @ one_hot[fitted]
        ridge = _best_ridge(fitted_gram, fitted_sums, hidden[held_out], one_hot[held_out])
        gram, sums = gram + hidden.mT @ hidden, sums + hidden.mT @ one_hot
        weight = _solve(gram, sums, ridge)
        if weight is None:
            raise RememberingError(
                f"RanPAC cannot be solved with a ridge of {ridge}; try a smaller projection"
            )
        self.extra_state["ridge"] = ridge
        state = {"gram": gram, "sums": sums, "weight": weight}
        # Contiguous as after loading: the rounding of a product depends on the layout of tensors.
        self.tensors |= {name: value.float().contiguous() for name, value in state.items()}

    def feature_scores(self, features: Tensor) -> Tensor:
        return self._hidden(features) @ self.tensors["weight"].double()

    def _hidden(self, features: Tensor) -> Tensor:
        return (features.double() @ self.tensors["projection"].double()).relu()


class RanPAC(RandomProjection, TunedOnce):
    """RanPAC as published: f is the backbone with an adapter, tuned on the first task and frozen.

    For equations see `RandomProjection`.

    Adaptation: the adapter is trained like those of the other methods, by AdamW on cross entropy,
    with the same rank and epochs.
    """

    name, title = "ranpac", "RanPAC"
    stores = "one adapter, the random projection, its Gram matrix, and sums and weights per class"


class FrozenRanPAC(RandomProjection, FrozenFeatures):
    """RanPAC without the paper's first phase: f is the frozen backbone.

    For equations see `RandomProjection`.
    """

    name, title = "ranpac_frozen", "RanPAC, frozen"
    stores = "the random projection, its Gram matrix, and sums and weights per class"


def _best_ridge(gram: Tensor, sums: Tensor, hidden: Tensor, one_hot: Tensor) -> float:
    """Return the ridge whose solution has the smallest squared error on held-out images."""
    errors = {}
    for ridge in RIDGES:
        weight = _solve(gram, sums, ridge)
        if weight is not None:
            errors[ridge] = F.mse_loss(hidden @ weight, one_hot).item()
    return min(errors, key=errors.__getitem__)


def _solve(gram: Tensor, sums: Tensor, ridge: float) -> Tensor | None:
    """Return (G + λ I)⁻¹ C, or None if the matrix is not positive definite after rounding."""
    regular = gram + ridge * torch.eye(len(gram)).to(gram)
    factor, failed = torch.linalg.cholesky_ex(regular)
    return None if failed else torch.cholesky_solve(sums, factor)
