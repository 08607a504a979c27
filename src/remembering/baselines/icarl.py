"""iCaRL: exemplars of every class, replayed, distilled, and asked who is nearest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.baselines.base import SingleAdapter
from remembering.baselines.exemplars import Exemplars
from remembering.data.images import ImageSequence, joined
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import Batch, TrainingSet


class ICaRL(SingleAdapter):
    """Trains on new images and exemplars together; answers with the nearest mean of exemplars.

    With g the sigmoid of an output, q that of the model before the task, and N the new classes,

        ℓ = − Σ_{c in N} [y_c log g_c + (1 − y_c) log (1 − g_c)]
            − Σ_{c not in N} [q_c log g_c + (1 − q_c) log (1 − g_c)].

    After the task exemplars p_1, p_2, ... of each class are herded (see `herded`), and those of old
    classes cut to an equal share of `memory` images in all. The answer to x is

        argmin_c ‖φ(x) − μ_c‖,   μ_c = mean of φ over the exemplars of c,   φ and μ of length 1.

    Adapted: φ is the normalised CLS token under the one adapter. A label that comes back is new
    again, and has exemplars of both tasks. The paper augments images; here
    that is up to the experiment.

    The paper keeps 2,000 exemplars for the 100 classes of CIFAR-100; 200 are as many for ten. A
    comparison gives as many for each class of its stream.
    """

    name = "icarl"
    title = "iCaRL"
    reference = (
        "Rebuffi et al. (2017), iCaRL: incremental classifier and representation learning, "
        "arXiv:1611.07725"
    )
    published = "iCaRL"
    stores = "one adapter, one head, exemplar images of every class, and their mean feature"
    defaults: ClassVar[Mapping[str, float]] = {"memory": 200}

    @property
    def exemplars(self) -> Exemplars:
        """The images that are kept."""
        return Exemplars(self, int(self.options["memory"]))

    def training_set(self, task: Task, head: Head) -> TrainingSet:
        training_set = super().training_set(task, head)
        if not self.learned:
            return training_set
        images = joined([task.images, self.exemplars.images])
        token_cache = TokenCache(self.backbone, images, self.settings.first_layer).filled()
        targets = torch.cat([training_set.targets, self.exemplars.targets])
        return TrainingSet(token_cache, targets, training_set.name, training_set.number)

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        self.wanted = (
            F.one_hot(training_set.targets, len(self.classes)).float().to(self.backbone.device)
        )
        if self.learned:
            self.old = self.outputs(training_set.token_cache, len(training_set))
            known = range(self.old.shape[1])
            self.others = [c for c in known if self.classes[c] not in task.classes]

    def loss(self, batch: Batch) -> Tensor:
        wanted = self.wanted[batch.index]
        if self.learned:
            old = self.outputs_before(batch, self.old).sigmoid()
            wanted[:, self.others] = old[:, self.others]
        each = F.binary_cross_entropy_with_logits(batch.outputs, wanted, reduction="none")
        return each.sum(1).mean()

    def end(self, task: Task, training_set: TrainingSet) -> None:
        own = self.directions(training_set.token_cache, len(task))
        self.exemplars.add(task, own, herded)
        self.average()

    def average(self) -> None:
        """Keep the mean direction of the exemplars of each class."""
        kept = self.exemplars
        if not len(kept) or len(kept.targets.unique()) < len(self.classes):
            raise RememberingError(
                f"a memory of {kept.budget} images has no room for one of each class of "
                f"each task; method '{self.name}' needs a larger memory"
            )
        features = self.directions(self.token_cache(kept.images), len(kept))
        sums = features.new_zeros(len(self.classes), features.shape[1])
        sums.index_add_(0, kept.targets.to(features.device), features)
        self.tensors["means"] = F.normalize(sums)

    def scores(self, images: ImageSequence) -> Tensor:
        return self.directions(self.token_cache(images), len(images)) @ self.tensors["means"].mT

    def directions(self, token_cache: TokenCache, count: int) -> Tensor:
        """φ of the first `count` images, of length 1: (n, dim)."""
        return F.normalize(self.features(token_cache, count))

    def token_cache(self, images: ImageSequence) -> TokenCache:
        """Images on their way to the first adapted layer."""
        return TokenCache(self.backbone, images, self.settings.first_layer)


def herded(features: Tensor, targets: Tensor, size: int) -> Tensor:
    """Positions of exemplars, size / classes of each class, the most telling first.

    p_k = argmin_x ‖μ − (φ(x) + Σ_{j < k} φ(p_j)) / k‖ over those not yet taken: the mean of the
    first k stays as near to the mean μ of the class as it can.

    >>> herded(torch.tensor([[0.0], [3.0], [2.0], [9.0]]), torch.tensor([0, 0, 0, 0]), size=2)
    tensor([1, 2])
    """
    classes = targets.unique().tolist()
    chosen = []
    for label in classes:
        members = (targets == label).nonzero().squeeze(1)
        own = features[members.to(features.device)]
        mean, total = own.mean(0), torch.zeros_like(own[0])
        free = torch.ones(len(own), dtype=torch.bool, device=own.device)
        for k in range(1, min(size // len(classes), len(own)) + 1):
            distance = (mean - (own + total) / k).norm(dim=1)
            best = int(distance.where(free, torch.inf).argmin())
            free[best] = False
            total = total + own[best]
            chosen.append(members[best])
    return torch.stack(chosen)
