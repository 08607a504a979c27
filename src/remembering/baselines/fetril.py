"""FeTrIL: features of new classes, moved to where the old classes were, stand for these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.base import TunedOnce
from remembering.baselines.prototypes import with_means


class FeTrIL(TunedOnce):
    """The representation is learned with the first task only; a linear classifier with each.

    For an old class c, the new class n whose mean is most similar lends its images:

        f̂_c(x) = f(x) + μ_c − μ_n   for x of class n,   n = argmax cos(μ_c, μ_n),

    and with these and the features of the new classes a linear support vector machine, one class
    against the rest, is fitted anew to features of unit length:

        min  Σ_c ½ ‖(w_c, b_c)‖² + C Σ_i max(0, 1 − y_ic (w_cᵀ f_i + b_c))²,   y_ic = ±1.

    Adapted: the representation is the frozen backbone with an adapter, trained by cross entropy on
    the first task. A class that comes back is learned from its new images and from features moved
    to its old mean. C is the authors' for CIFAR-100; on training images of scikit-learn's digits
    that were held out, C = 100 did as well.
    """

    name = "fetril"
    title = "FeTrIL"
    reference = (
        "Petit et al. (2023), FeTrIL: feature translation for exemplar-free class-incremental "
        "learning, arXiv:2211.13131"
    )
    published = "FeTrIL"
    stores = "one adapter, weights and the mean feature of each class, and of how many images"
    defaults: ClassVar[Mapping[str, float]] = {"c": 1.0}

    def learn_features(self, features: Tensor, targets: Tensor) -> None:
        if self.learned:
            moved = translated(self.tensors["means"], features, targets)
            fitted = torch.cat([features, moved[0]]), torch.cat([targets, moved[1]])
        else:
            fitted = features, targets
        weight, bias = support_vectors(*fitted, len(self.classes), self.options["c"])
        self.tensors |= {"weight": weight, "bias": bias}
        self.tensors |= with_means(self.tensors, len(self.classes), features, targets)

    def feature_scores(self, features: Tensor) -> Tensor:
        return F.linear(F.normalize(features), self.tensors["weight"], self.tensors["bias"])

    @property
    def trained(self) -> int:
        return super().trained + self.tensors["weight"].numel() + self.tensors["bias"].numel()


def translated(means: Tensor, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Pseudo-features of every old class, and its position.

    >>> moved, owners = translated(torch.tensor([[0.0, 5.0]]), torch.eye(2), torch.tensor([1, 2]))
    >>> moved.tolist(), owners.tolist()
    ([[0.0, 5.0]], [0])
    """
    new = targets.unique()
    centres = torch.stack([features[targets == n].mean(0) for n in new])
    nearest = (F.normalize(means) @ F.normalize(centres).mT).argmax(1).tolist()
    parts = [
        features[targets == new[i]] - centres[i] + mean
        for mean, i in zip(means, nearest, strict=True)
    ]
    owners = [torch.full((len(part),), c, device=targets.device) for c, part in enumerate(parts)]
    return torch.cat(parts), torch.cat(owners)


def support_vectors(
    features: Tensor, targets: Tensor, rows: int, c: float
) -> tuple[Tensor, Tensor]:
    """Weights and biases of `rows` classes; convex, so that starting from zero loses nothing."""
    unit = F.normalize(features).double()
    sign = 2 * F.one_hot(targets, rows).double() - 1
    weight = unit.new_zeros(rows, unit.shape[1]).requires_grad_()
    bias = unit.new_zeros(rows).requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        slack = (1 - sign * F.linear(unit, weight, bias)).relu().square().sum()
        loss = (weight.square().sum() + bias.square().sum()) / 2 + c * slack
        loss.backward()
        return loss

    optimizer.step(objective)
    return weight.detach().float(), bias.detach().float()
