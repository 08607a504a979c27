"""FeTrIL: features of new classes, translated to the means of old classes, replace their images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.class_means import updated_class_means
from remembering.baselines.first_session import FirstSession


class FeTrIL(FirstSession):
    """Learn the representation with the first task only and refit a linear classifier per task.

    Pseudo-features of an old class c are made from the images of the new class n with the most
    similar mean:

        f̂_c(x) = f(x) + μ_c − μ_n   for x of class n,   n = argmax cos(μ_c, μ_n).

    A linear support vector machine, one class against the rest, is fitted to these and to the
    features of the new classes, all of unit length:

        min  Σ_c ½ ‖(w_c, b_c)‖² + C Σ_i max(0, 1 − y_ic (w_cᵀ f_i + b_c))²,   y_ic = ±1.

    Adaptation: the representation is the frozen backbone with an adapter, trained on the first task
    as that of the default model. A class that reappears is learned from its new images and from
    features translated to its old mean.

    Defaults: `c` (C) is the authors' for CIFAR-100; on held-out training images of scikit-learn's
    digits, C = 100 did as well.
    """

    name = "fetril"
    title = "FeTrIL"
    reference = (
        "Petit et al. (2023), FeTrIL: feature translation for exemplar-free class-incremental "
        "learning, arXiv:2211.13131"
    )
    published = "FeTrIL"
    stores = "one adapter, and the classifier weights, mean feature and image count of each class"
    defaults: ClassVar[Mapping[str, float]] = {"c": 1.0}

    def learn_features(self, features: Tensor, targets: Tensor) -> None:
        data = features, targets
        if self.learned:
            pseudo = translate(self.tensors["means"], features, targets)
            data = torch.cat([features, pseudo[0]]), torch.cat([targets, pseudo[1]])
        weight, bias = fit_svm(*data, len(self.classes), self.options["c"])
        self.tensors |= {"weight": weight, "bias": bias}
        self.tensors |= updated_class_means(self.tensors, len(self.classes), features, targets)

    def feature_scores(self, features: Tensor) -> Tensor:
        return F.linear(F.normalize(features), self.tensors["weight"], self.tensors["bias"])

    @property
    def trained(self) -> int:
        return super().trained + self.tensors["weight"].numel() + self.tensors["bias"].numel()


def translate(means: Tensor, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return pseudo-features of every old class, made from features of new ones, and targets.

    >>> pseudo, classes = translate(torch.tensor([[0.0, 5.0]]), torch.eye(2), torch.tensor([1, 2]))
    >>> pseudo.tolist(), classes.tolist()
    ([[0.0, 5.0]], [0])
    """
    new = targets.unique()
    centres = torch.stack([features[targets == n].mean(0) for n in new])
    nearest = (F.normalize(means) @ F.normalize(centres).mT).argmax(1).tolist()
    parts = [
        features[targets == new[i]] - centres[i] + mean
        for mean, i in zip(means, nearest, strict=True)
    ]
    classes = [torch.full((len(part),), c, device=targets.device) for c, part in enumerate(parts)]
    return torch.cat(parts), torch.cat(classes)


def fit_svm(features: Tensor, targets: Tensor, classes: int, c: float) -> tuple[Tensor, Tensor]:
    """Return weights and biases of the support vector machine.

    The problem is convex, so the fit starts from zero instead of the previous solution.
    """
    unit = F.normalize(features).double()
    sign = 2 * F.one_hot(targets, classes).double() - 1
    weight = unit.new_zeros(classes, unit.shape[1]).requires_grad_()
    bias = unit.new_zeros(classes).requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        slack = (1 - sign * F.linear(unit, weight, bias)).relu().square().sum()
        loss = (weight.square().sum() + bias.square().sum()) / 2 + c * slack
        loss.backward()
        return loss

    optimizer.step(objective)
    return weight.detach().float(), bias.detach().float()
