"""Nearest class mean on frozen features (SimpleCIL)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.base import FrozenFeatures
from remembering.baselines.class_means import updated_class_means
from remembering.baselines.first_session import ModelFeatures


class NearestClassMean(FrozenFeatures):
    """Classify by the most similar class prototype, the mean of the features of a class.

    p_c = 1 / n_c Σ_{y_i = c} f(x_i),   ŷ = argmax_c cos(f(x), p_c).

    As in the paper, nothing is trained. The running mean and the count are stored, so a class that
    reappears in a later task continues from its earlier mean.
    """

    name = "ncm"
    title = "nearest class mean (SimpleCIL)"
    reference = (
        "Zhou et al. (2023), Revisiting class-incremental learning with pre-trained models, "
        "arXiv:2303.07338"
    )
    stores = "the mean feature and the image count of each class"

    def learn_features(self, features: Tensor, targets: Tensor) -> None:
        self.tensors |= updated_class_means(self.tensors, len(self.classes), features, targets)

    def feature_scores(self, features: Tensor) -> Tensor:
        return F.normalize(features) @ F.normalize(self.tensors["means"]).mT


class NearestClassMeanOurFeatures(ModelFeatures, NearestClassMean):
    """Nearest class mean on the features of the default model.

    For equations see `NearestClassMean`, for the features `ModelFeatures`.
    """

    name = "ncm-our-features"
    title = "nearest class mean, our features"
    stores = "one adapter, and the mean feature and the image count of each class"
