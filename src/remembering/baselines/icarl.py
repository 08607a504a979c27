"""iCaRL: replay and distillation on exemplars, classification by the nearest mean of exemplars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.baselines.exemplars import Exemplars, with_memory
from remembering.baselines.single_adapter import SingleAdapter
from remembering.data.images import ImageSequence
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import Batch, TrainingSet


class ICaRL(SingleAdapter):
    """Train on new images and exemplars together; classify by the nearest mean of exemplars.

    With g the sigmoid of a logit, q that of the model before the task, and N the new classes,

        ℓ = − Σ_{c in N} [y_c log g_c + (1 − y_c) log (1 − g_c)]
            − Σ_{c not in N} [q_c log g_c + (1 − q_c) log (1 − g_c)].

    After the task, exemplars p_1, p_2, ... of each class are selected by herding (see
    `herd_greedily`), and the exemplars of old classes are reduced to an equal share of `memory`
    images in total. The prediction for x is

        argmin_c ‖φ(x) − μ_c‖,   μ_c = mean of φ over the exemplars of c,   φ and μ of unit length.

    Adaptation: φ is the normalized CLS token under the single adapter. A label that reappears
    counts as new again and has exemplars of both tasks. The paper augments images; here the
    experiment decides.

    Defaults: the paper stores 2,000 exemplars for the 100 classes of CIFAR-100; `memory` = 200 is
    the same number per class for ten classes. A comparison allows the same number for each class
    of its stream.
    """

    name = "icarl"
    title = "iCaRL"
    reference = (
        "Rebuffi et al. (2017), iCaRL: incremental classifier and representation learning, "
        "arXiv:1611.07725"
    )
    published = "iCaRL"
    stores = "one adapter, one head, exemplar images of each class, and their mean features"
    defaults: ClassVar[Mapping[str, float]] = {"memory": 200}

    @property
    def exemplars(self) -> Exemplars:
        """The replay memory."""
        return Exemplars(self, int(self.options["memory"]))

    def training_set(self, task: Task, head: Head) -> TrainingSet:
        if not self.learned:
            return super().training_set(task, head)
        return with_memory(self, task, head, self.exemplars.images, self.exemplars.targets)

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        one_hot = F.one_hot(training_set.targets, len(self.classes))
        self.one_hot = one_hot.float().to(self.backbone.device)
        if self.learned:
            self.old = self.outputs(training_set.token_cache, len(training_set))
            known = range(self.old.shape[1])
            self.distilled = [c for c in known if self.classes[c] not in task.classes]

    def loss(self, batch: Batch) -> Tensor:
        targets = self.one_hot[batch.index]
        if self.learned:
            old = self.outputs_before(batch, self.old).sigmoid()
            targets[:, self.distilled] = old[:, self.distilled]
        losses = F.binary_cross_entropy_with_logits(batch.outputs, targets, reduction="none")
        return losses.sum(1).mean()

    def end(self, task: Task, training_set: TrainingSet) -> None:
        features = self.unit_features(training_set.token_cache, len(task))
        self.exemplars.add(task, features, herd_greedily)
        self.update_means()

    def update_means(self) -> None:
        """Recompute the mean of the unit features of the exemplars of each class."""
        exemplars = self.exemplars
        if not len(exemplars) or len(exemplars.targets.unique()) < len(self.classes):
            raise RememberingError(
                f"a memory of {exemplars.budget} images has no room for one of each class of "
                f"each task; method '{self.name}' needs a larger memory"
            )
        features = self.unit_features(self.token_cache(exemplars.images), len(exemplars))
        sums = features.new_zeros(len(self.classes), features.shape[1])
        sums.index_add_(0, exemplars.targets.to(features.device), features)
        self.tensors["means"] = F.normalize(sums)

    def scores(self, images: ImageSequence) -> Tensor:
        return self.unit_features(self.token_cache(images), len(images)) @ self.tensors["means"].mT

    def unit_features(self, token_cache: TokenCache, count: int) -> Tensor:
        """Return φ of the first `count` images, normalized to unit length: (n, dim)."""
        return F.normalize(self.features(token_cache, count))

    def token_cache(self, images: ImageSequence) -> TokenCache:
        """Return the tokens of images at the input of the first adapted layer."""
        return TokenCache(self.backbone, images, self.settings.first_layer)


def herd_greedily(features: Tensor, targets: Tensor, size: int) -> Tensor:
    """Return positions of size / classes exemplars of each class, in the order of herding.

    p_k = argmin_x ‖μ − (φ(x) + Σ_{j < k} φ(p_j)) / k‖ over the images not selected yet, so that the
    mean of the first k exemplars stays as close as possible to the mean μ of the class.

    >>> herd_greedily(torch.tensor([[0.0], [3.0], [2.0], [9.0]]), torch.zeros(4), size=2)
    tensor([1, 2])
    """
    classes = targets.unique().tolist()
    chosen = []
    for label in classes:
        members = (targets == label).nonzero().squeeze(1)
        candidates = features[members.to(features.device)]
        mean, total = candidates.mean(0), torch.zeros_like(candidates[0])
        free = torch.ones(len(candidates), dtype=torch.bool, device=candidates.device)
        for k in range(1, min(size // len(classes), len(candidates)) + 1):
            distance = (mean - (candidates + total) / k).norm(dim=1)
            best = int(distance.where(free, torch.inf).argmin())
            free[best] = False
            total = total + candidates[best]
            chosen.append(members[best])
    return torch.stack(chosen)
