"""Nearest class mean on frozen features: SimpleCIL."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.base import FrozenFeatures


class NearestClassMean(FrozenFeatures):
    """One prototype a class, the mean of its features; the most similar one answers.

    p_c = 1 / n_c Σ_{y_i = c} f(x_i),   ŷ = argmax_c cos(f(x), p_c).

    As in the paper, nothing is trained. What is kept is the running mean and the count, so that a
    class that comes back in a later task goes on from where it was.
    """

    name = "ncm"
    title = "nearest class mean (SimpleCIL)"
    reference = (
        "Zhou et al. (2023), Revisiting class-incremental learning with pre-trained models, "
        "arXiv:2303.07338"
    )
    stores = "the mean feature of each class, and how many images it is of"

    def learn_features(self, features: Tensor, targets: Tensor) -> None:
        means, counts = class_means(self.tensors, len(self.classes), features)
        added = torch.bincount(targets, minlength=len(counts))
        sums = (means.double() * counts[:, None]).index_add(0, targets, features.double())
        total = counts + added
        self.tensors = {"means": (sums / total[:, None]).float(), "counts": total}

    def feature_scores(self, features: Tensor) -> Tensor:
        return F.normalize(features) @ F.normalize(self.tensors["means"]).mT


def class_means(kept: dict[str, Tensor], classes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Means (classes, dim) and counts (classes,) kept so far, with zeros for new classes."""
    means = like.new_zeros(classes, like.shape[1])
    counts = torch.zeros(classes, dtype=torch.long, device=like.device)
    if kept:
        means[: len(kept["means"])] = kept["means"]
        counts[: len(kept["counts"])] = kept["counts"]
    return means, counts
