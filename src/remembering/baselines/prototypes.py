"""What a class was to the adapter when it was learned: shared by methods that replay no images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.baselines.base import SingleAdapter
from remembering.baselines.ncm import class_means
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet, adapted, train
from remembering.runtime.progress import Progress
from remembering.runtime.seeding import generator


def pooled(learner: SingleAdapter, adapter: Adapter, tokens: Tensor) -> Tensor:
    """What the head reads of these tokens under an adapter: (n, dim)."""
    return learner.backbone.pool(adapted(learner.backbone, adapter, tokens))


def with_means(
    kept: Mapping[str, Tensor], classes: int, features: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """Mean and count of each class, with these images added to what was kept."""
    old = {name: kept[name] for name in ("means", "counts") if name in kept}
    means, counts = class_means(old, classes, features)
    sums = (means.double() * counts[:, None]).index_add(0, targets, features.double())
    total = counts + targets.bincount(minlength=classes)
    return {"means": (sums / total[:, None]).float(), "counts": total}


class PrototypeReplay(SingleAdapter):
    """What PASS, IL2A and SSRE share: features that stay, and a head that still knows the old.

    ℓ = ℓ_new + λ_d ℓ_distil + λ_p CE(W p̃_c + b, c),

    where ℓ_distil is the mean distance ‖f(x) − f_old(x)‖ of the features of the new images from
    what they were before the task, and p̃_c stands for class c in the space of features: as many in
    a step as there are images, of old classes at random. A class that comes back goes on with
    the mean of all its images, each as the adapter of its time saw it.

    PyCIL's settings have λ_p = 10, and λ_d = 10 (2 for SSRE) with norms and sums over the batch. On
    training images of scikit-learn's digits that were held out, λ_d made no difference from 1 to
    10, and with λ_p = 10 the head resisted new classes, as steps are few: it is 1 here.
    """

    defaults: ClassVar[Mapping[str, float]] = {"distil": 10.0, "replay": 1.0}

    def spare(self, task: Task) -> int:
        """MmapBuffer of the head that serve in the training of this task only."""
        return 0

    def learn_task(self, task: Task, progress: Progress) -> None:
        head = self.head.extended(task.classes)
        training_set = self.training_set(task, head)
        self.begin(task, training_set)
        rows, spare = len(head.weight), self.spare(task)
        wide = head.with_tensors(F.pad(head.weight, (0, 0, 0, spare)), F.pad(head.bias, (0, spare)))
        self.adapter, wide = train(
            self.backbone,
            self.adapter,
            wide,
            training_set,
            self.settings,
            None,
            progress,
            callback=self,
        )
        self.head = head.with_tensors(wide.weight[:rows].clone(), wide.bias[:rows].clone())
        self.end(task, training_set)

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        if self.learned:
            self.old = self.features(training_set.token_cache, len(training_set))

    def end(self, task: Task, training_set: TrainingSet) -> None:
        features = self.features(training_set.token_cache, len(training_set))
        self.tensors |= self.summary(features, training_set.targets.to(features.device))

    def summary(self, features: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """What to keep of the images of a task."""
        return with_means(self.tensors, len(self.classes), features, targets)

    def recalled(self, batch: Batch) -> Tensor:
        """CE(W p̃_c + b, c) over old classes drawn for this step."""
        rng = generator(self.settings.seed, self.name, self.learned, batch.step)
        drawn = torch.randint(len(self.tensors["means"]), (len(batch.index),), generator=rng)
        drawn = drawn.to(batch.outputs.device)
        return F.cross_entropy(self.recalled_outputs(batch.head, drawn, rng), drawn)

    def recalled_outputs(self, head: Head, drawn: Tensor, rng: torch.Generator) -> Tensor:
        """What the head says of p̃_c for these classes."""
        return F.linear(self.tensors["means"][drawn], head.weight, head.bias)


def distance(now: Tensor, old: Tensor) -> Tensor:
    """‖f − f_old‖ of each image: (n,)."""
    return (now - old).square().sum(1).clamp_min(1e-12).sqrt()
