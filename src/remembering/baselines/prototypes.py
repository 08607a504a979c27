"""Replay of class prototypes instead of images, shared by PASS, IL2A and SSRE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.baselines.class_means import updated_class_means
from remembering.baselines.single_adapter import SingleAdapter
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet, adapted, train
from remembering.runtime.progress import Progress
from remembering.runtime.seeding import generator


class PrototypeReplay(SingleAdapter):
    """Base class of methods that distil features and replay prototypes of old classes.

    ℓ = ℓ_new + λ_d ℓ_distil + λ_p CE(W p̃_c + b, c),

    where ℓ_distil is the mean distance ‖f(x) − f_old(x)‖ between the current features of the new
    images and those before the task, and p̃_c represents class c in feature space. Each step draws
    as many old classes at random as it has images. A class that reappears continues with the mean
    over all its images, each as seen by the adapter of its time.

    Defaults: PyCIL's settings have λ_p = 10, and λ_d = 10 (2 for SSRE) with norms and sums over the
    batch. On held-out training images of scikit-learn's digits, `distil` (λ_d) made no difference
    from 1 to 10. With λ_p = 10 the head learned new classes too slowly for the few steps, so
    `replay` (λ_p) is 1 here.
    """

    defaults: ClassVar[Mapping[str, float]] = {"distil": 10.0, "replay": 1.0}

    def auxiliary_rows(self, task: Task) -> int:
        """Return the number of rows of the head that are used only while training this task."""
        return 0

    def learn_task(self, task: Task, progress: Progress) -> None:
        head = self.head.extended(task.classes)
        data = self.training_set(task, head)
        self.begin(task, data)
        rows, extra = len(head.weight), self.auxiliary_rows(task)
        wide = head.with_tensors(F.pad(head.weight, (0, 0, 0, extra)), F.pad(head.bias, (0, extra)))
        self.adapter, wide = train(
            self.backbone, self.adapter, wide, data, self.settings, progress=progress, callback=self
        )
        self.head = head.with_tensors(wide.weight[:rows].clone(), wide.bias[:rows].clone())
        self.end(task, data)

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        if self.learned:
            self.old = self.features(training_set.token_cache, len(training_set))

    def end(self, task: Task, training_set: TrainingSet) -> None:
        features = self.features(training_set.token_cache, len(training_set))
        self.tensors |= self.statistics(features, training_set.targets.to(features.device))

    def statistics(self, features: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the class statistics to store after a task."""
        return updated_class_means(self.tensors, len(self.classes), features, targets)

    def adapted_features(self, adapter: Adapter, tokens: Tensor) -> Tensor:
        """Return the input of the head for these tokens under an adapter: (n, dim)."""
        return self.backbone.pool(adapted(self.backbone, adapter, tokens))

    def replay_loss(self, batch: Batch) -> Tensor:
        """Return CE(W p̃_c + b, c) over old classes drawn for this step."""
        rng = generator(self.settings.seed, self.name, self.learned, batch.step)
        classes = torch.randint(len(self.tensors["means"]), (len(batch.index),), generator=rng)
        classes = classes.to(batch.outputs.device)
        return F.cross_entropy(self.prototype_logits(batch.head, classes, rng), classes)

    def prototype_logits(self, head: Head, classes: Tensor, rng: torch.Generator) -> Tensor:
        """Return the logits of p̃_c for these classes."""
        return F.linear(self.tensors["means"][classes], head.weight, head.bias)


def distance(features: Tensor, old: Tensor) -> Tensor:
    """Return ‖f − f_old‖ of each image: (n,)."""
    return (features - old).square().sum(1).clamp_min(1e-12).sqrt()
