"""Streaming linear discriminant analysis (SLDA) on frozen features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from remembering.baselines.base import FrozenFeatures
from remembering.baselines.class_means import class_means


class StreamingLDA(FrozenFeatures):
    """Update a running mean per class and one shared covariance, image by image.

    For a feature z of class y, after t images of which n_y belong to that class:

        Σ   ← (t Σ + t / (t + 1) (z − μ_y)(z − μ_y)ᵀ) / (t + 1)
        μ_y ← (n_y μ_y + z) / (n_y + 1)

    and Λ = ((1 − ε) Σ + ε I)⁻¹, w_c = Λ μ_c, b_c = −½ μ_cᵀ Λ μ_c, ŷ = argmax_c w_cᵀ z + b_c.

    Adaptation: the paper initializes Σ with a batch of base classes; here it starts from zero. The
    first image of a class only changes μ_y, because there is no mean yet to deviate from.
    `shrinkage` is ε.
    """

    name = "slda"
    title = "streaming LDA"
    reference = (
        "Hayes and Kanan (2020), Lifelong machine learning with deep streaming linear discriminant "
        "analysis, arXiv:1909.01520"
    )
    stores = "the mean feature and image count of each class, and one shared covariance matrix"
    defaults: ClassVar[Mapping[str, float]] = {"shrinkage": 1e-4}

    def learn_features(self, features: Tensor, targets: Tensor) -> None:
        means, counts = class_means(self.tensors, len(self.classes), features)
        means, dim = means.double(), features.shape[1]
        covariance = (
            self.tensors["covariance"].double() if self.tensors else means.new_zeros(dim, dim)
        )
        seen = int(counts.sum())
        for z, y in zip(features.double(), targets.tolist(), strict=True):
            difference = z - means[y]
            if counts[y]:
                update = difference.outer(difference) * (seen / (seen + 1))
                covariance = (seen * covariance + update) / (seen + 1)
            means[y] += difference / (counts[y] + 1)
            counts[y] += 1
            seen += 1
        self.tensors = {"means": means.float(), "counts": counts, "covariance": covariance.float()}

    def feature_scores(self, features: Tensor) -> Tensor:
        shrinkage = self.options["shrinkage"]
        covariance, means = self.tensors["covariance"].double(), self.tensors["means"].double()
        shrunk = (1 - shrinkage) * covariance + shrinkage * torch.eye(len(covariance)).to(means)
        weight: Tensor = torch.linalg.solve(shrunk, means.mT).mT
        bias = -0.5 * (weight * means).sum(1)
        return features.double() @ weight.mT + bias
