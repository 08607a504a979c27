"""What a class was to the adapter when it was learned: shared by methods that replay no images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters import Adapter
from remembering.baselines.base import SingleAdapter
from remembering.baselines.ncm import class_means
from remembering.encoding import Prefix, batches
from remembering.seeding import generator
from remembering.tasks.task import Task
from remembering.training import Batch, Lesson, adapted


@torch.no_grad()
def adapted_features(learner: SingleAdapter, prefix: Prefix, count: int) -> Tensor:
    """What the head reads of `count` images in a row, under the adapter of now: (n, dim)."""
    parts = [pooled(learner, learner.adapter, prefix[index]) for index in batches(count)]
    return torch.cat(parts)


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
    """

    defaults: ClassVar[Mapping[str, float]] = {"distil": 10.0, "replay": 10.0}

    def begin(self, task: Task, lesson: Lesson) -> None:
        self.old = self.old_features(lesson) if self.learned else None

    def old_features(self, lesson: Lesson) -> Tensor:
        """What is to stay: (images, dim)."""
        return adapted_features(self, lesson.prefix, len(lesson))

    def end(self, task: Task, lesson: Lesson) -> None:
        features = adapted_features(self, lesson.prefix, len(lesson))
        targets = lesson.targets.to(features.device)
        self.tensors |= self.summary(features, targets)

    def summary(self, features: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """What to keep of the images of a task."""
        return with_means(self.tensors, len(self.classes), features, targets)

    def recalled(self, batch: Batch) -> Tensor:
        """CE(W p̃_c + b, c) over prototypes drawn for this step."""
        rng = generator(self.settings.seed, self.name, self.learned, batch.step)
        means = self.tensors["means"]
        drawn = torch.randint(len(means), (len(batch.index),), generator=rng).to(means.device)
        return F.cross_entropy(self.recalled_outputs(batch, drawn, rng), drawn)

    def recalled_outputs(self, batch: Batch, drawn: Tensor, rng: torch.Generator) -> Tensor:
        """What the head says of prototypes of these classes."""
        return F.linear(self.tensors["means"][drawn], batch.head.weight, batch.head.bias)
