"""RanPAC: ridge regression on random features; the backbone is tuned on the first task, or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.base import Baseline, FrozenFeatures, TunedOnce
from remembering.errors import RememberingError
from remembering.runtime.seeding import generator, permutation

RIDGES = tuple(10.0**power for power in range(-8, 9))


class RandomProjection(Baseline):
    """Class prototypes, decorrelated in a random space that is wider than the features.

    h(x) = ReLU(f(x) W) with W (dim, projection) drawn once from N(0, 1). Over all images so far

        G = Σ h hᵀ,   C = Σ h yᵀ   (y one-hot),   ŷ = argmax h(x)ᵀ (G + λ I)⁻¹ C.

    λ is chosen anew with each task among 10⁻⁸ ... 10⁸: fitted on G and C with four fifths of the
    task's training images, it is the one of least squared error on the remaining fifth, as in the
    paper. Then all of the task is added.

    Adapted: W has 2,000 columns where the paper has 10,000, because G grows with their square; and
    G and C of the tasks before take part in the choice of λ, where the authors' code has those of
    the new task alone.
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
            drawn = torch.randn(features.shape[1], width, generator=rng)
            self.tensors["projection"] = drawn.to(features.device)
        hidden = self._hidden(features)
        wanted = F.one_hot(targets, len(self.classes)).to(hidden)
        gram = hidden.new_zeros(width, width)
        sums = hidden.new_zeros(width, len(self.classes))
        if "gram" in self.tensors:
            gram += self.tensors["gram"]
            sums[:, : self.tensors["sums"].shape[1]] += self.tensors["sums"]
        order = permutation(len(hidden), self.settings.seed, "ranpac", self.learned)
        cut = max(1, len(order) // 5)
        held, fitted = order[:cut], order[cut:]
        part = hidden[fitted]
        ridge = _best_ridge(
            gram + part.mT @ part, sums + part.mT @ wanted[fitted], hidden[held], wanted[held]
        )
        gram, sums = gram + hidden.mT @ hidden, sums + hidden.mT @ wanted
        weight = _solve(gram, sums, ridge)
        if weight is None:
            raise RememberingError(f"RanPAC cannot be solved with a ridge of {ridge}")
        self.extra_state["ridge"] = ridge
        kept = {"gram": gram, "sums": sums, "weight": weight}
        self.tensors |= {name: value.float() for name, value in kept.items()}

    def feature_scores(self, features: Tensor) -> Tensor:
        return self._hidden(features) @ self.tensors["weight"].double()

    def _hidden(self, features: Tensor) -> Tensor:
        return (features.double() @ self.tensors["projection"].double()).relu()


class RanPAC(RandomProjection, TunedOnce):
    """As published: f is the backbone with an adapter, tuned on the first task and then frozen.

    The rest is `RandomProjection`'s. Adapted: the adapter is trained as those of the other methods
    are, by AdamW on cross entropy, with their rank and epochs.
    """

    name, title = "ranpac", "RanPAC"
    stores = "an adapter, the random projection, its Gram matrix, a sum and weights for each class"


class FrozenRanPAC(RandomProjection, FrozenFeatures):
    """Without the paper's first phase: f is the frozen backbone, as for the other frozen methods.

    The rest is `RandomProjection`'s.
    """

    name, title = "ranpac_frozen", "RanPAC, frozen"
    stores = "the random projection, its Gram matrix, one sum and one weight vector a class"


def _best_ridge(gram: Tensor, sums: Tensor, hidden: Tensor, wanted: Tensor) -> float:
    """The ridge whose solution has the least squared error on held-out images."""
    errors = {}
    for ridge in RIDGES:
        weight = _solve(gram, sums, ridge)
        if weight is not None:
            errors[ridge] = F.mse_loss(hidden @ weight, wanted).item()
    return min(errors, key=errors.__getitem__)


def _solve(gram: Tensor, sums: Tensor, ridge: float) -> Tensor | None:
    """(G + λ I)⁻¹ C, or None where rounding leaves no positive definite matrix."""
    regular = gram + ridge * torch.eye(len(gram)).to(gram)
    factor, failed = torch.linalg.cholesky_ex(regular)
    return None if failed else torch.cholesky_solve(sums, factor)
