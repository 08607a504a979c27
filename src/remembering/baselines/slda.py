"""Streaming linear discriminant analysis (SLDA) on frozen features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from remembering.baselines.base import FrozenFeatures
from remembering.baselines.class_means import class_means
from remembering.baselines.first_session import ModelFeatures


class StreamingLDA(FrozenFeatures):
    """Update a running mean per class and one shared covariance, image by image.

    For a feature z of class y, after t images of which n_y belong to that class:

        Σ   ← (t Σ + t / (t + 1) (z − μ_y)(z − μ_y)ᵀ) / (t + 1)
        μ_y ← (n_y μ_y + z) / (n_y + 1)

    and Λ = ((1 − ε) Σ + ε I)⁻¹, w_c = Λ μ_c, b_c = −½ μ_cᵀ Λ μ_c, ŷ = argmax_c w_cᵀ z + b_c.

    Adaptation: the paper initializes Σ with a batch of base classes; here it starts from zero. The
    first image of a class only changes μ_y, because there is no mean yet to deviate from.
    `shrinkage` is ε. The updates of a task are computed as one matrix product.
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
        means, z = means.double(), features.double()
        deviations, first = torch.empty_like(z), torch.zeros(len(z), dtype=torch.bool).to(z.device)
        for label in targets.unique():
            own = (targets == label).nonzero().flatten()
            before = counts[label] + torch.arange(len(own), device=z.device).double()
            start = means[label] * counts[label]
            sums = start + torch.cat([torch.zeros_like(z[:1]), z[own].cumsum(0)])
            deviations[own] = z[own] - sums[:-1] / before.clamp_min(1)[:, None]
            first[own] = before == 0
            counts[label] += len(own)
            means[label] = sums[-1] / counts[label]
        # With S = t Σ, an image adds t / (t + 1) δ δᵀ to S. The first image of a class leaves Σ as
        # it is, so S grows by (t + 1) / t: this multiplies what earlier images added.
        seen = int(counts.sum()) - len(z) + torch.arange(len(z), device=z.device).double()
        growth = torch.where(first & (seen > 0), (seen + 1) / seen.clamp_min(1), 1.0)
        later = growth.flip(0).cumprod(0).flip(0) / growth
        weight = torch.where(first, 0.0, seen / (seen + 1)) * later
        scatter = (deviations * weight[:, None]).mT @ deviations
        if "covariance" in self.tensors:
            scatter += self.tensors["covariance"].double() * (seen[0] * growth.prod())
        covariance = scatter / int(counts.sum())
        self.tensors |= {
            "means": means.float(),
            "counts": counts,
            "covariance": covariance.float(),
        }

    def feature_scores(self, features: Tensor) -> Tensor:
        shrinkage = self.options["shrinkage"]
        covariance, means = self.tensors["covariance"].double(), self.tensors["means"].double()
        shrunk = (1 - shrinkage) * covariance + shrinkage * torch.eye(len(covariance)).to(means)
        weight: Tensor = torch.linalg.solve(shrunk, means.mT).mT
        bias = -0.5 * (weight * means).sum(1)
        return features.double() @ weight.mT + bias


class StreamingLDAOurFeatures(ModelFeatures, StreamingLDA):
    """Streaming LDA on the features of the default model.

    For equations see `StreamingLDA`, for the features `ModelFeatures`.
    """

    name = "slda-our-features"
    title = "streaming LDA, our features"
    stores = "one adapter, the mean feature and image count of each class, and one covariance"
