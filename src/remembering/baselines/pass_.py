"""PASS: prototype augmentation and self-supervision by rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.baselines.prototypes import PrototypeReplay, distance
from remembering.baselines.rotations import RotatedImages
from remembering.data.task import Task
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import Batch, TrainingSet


class PASS(PrototypeReplay):
    """Replay prototypes with Gaussian noise, and train on rotated images as extra classes.

    ℓ = ℓ_CE + λ_d mean ‖f(x) − f_old(x)‖ + λ_p CE(W p̃_c + b, c),   p̃_c = μ_c + r ε,   ε ~ N(0, I),

    where μ_c is the mean feature of the old class c, and r² the mean variance of a feature within a
    class of the first task. Each image is also rotated by 90°, 180° and 270°; a rotated class is a
    separate class, and ℓ_CE and the distance are means over the images in all rotations.

    Adaptation: applies to adapter and head only. The rows of rotated classes take part in all cross
    entropies of their task and are discarded after it, because no prediction uses them. The paper
    divides logits by a temperature of 0.1, for a network trained from scratch; here they are not
    scaled.

    Defaults: `turns` is the paper's number of rotations; for the others see `PrototypeReplay`.
    """

    name = "pass"
    title = "PASS"
    reference = (
        "Zhu et al. (2021), Prototype augmentation and self-supervision for incremental learning, "
        "CVPR 2021"
    )
    published = "PASS"
    stores = "one adapter, one head, the mean feature of each class, and one shared radius"
    defaults: ClassVar[Mapping[str, float]] = {**PrototypeReplay.defaults, "turns": 3}

    def auxiliary_rows(self, task: Task) -> int:
        return int(self.options["turns"]) * len(task.classes)

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        turns = range(1, int(self.options["turns"]) + 1)
        images = [RotatedImages(self.backbone, task.images, [quarter]) for quarter in turns]
        first_layer = self.settings.first_layer
        self.rotated = [TokenCache(self.backbone, each, first_layer).filled() for each in images]
        self.task_targets = task.targets
        views = [training_set.token_cache, *self.rotated]
        if self.learned:
            self.old = torch.stack([self.features(view, len(training_set)) for view in views])

    def loss(self, batch: Batch) -> Tensor:
        features, logits, targets = [batch.features], [batch.outputs], [batch.targets]
        rotated_class = len(self.classes) + self.task_targets[batch.index].to(batch.targets.device)
        for token_cache in self.rotated:
            features.append(self.adapted_features(batch.adapter, token_cache[batch.index]))
            logits.append(F.linear(features[-1], batch.head.weight, batch.head.bias))
            targets.append(rotated_class)
            rotated_class = rotated_class + int(self.task_targets.max()) + 1
        loss = F.cross_entropy(torch.cat(logits), torch.cat(targets))
        if not self.learned:
            return loss
        old = [self.features_before(batch, self.old[0]), *self.old[1:, batch.index]]
        distil, replay = self.options["distil"], self.options["replay"]
        change = distance(torch.cat(features), torch.cat(old)).mean()
        return loss + distil * change + replay * self.replay_loss(batch)

    def prototype_logits(self, head: Head, classes: Tensor, rng: torch.Generator) -> Tensor:
        means = self.tensors["means"][classes]
        noise = torch.randn(means.shape, generator=rng).to(means)
        return F.linear(means + self.tensors["radius"] * noise, head.weight, head.bias)

    def statistics(self, features: Tensor, targets: Tensor) -> dict[str, Tensor]:
        statistics = super().statistics(features, targets)
        if not self.learned:
            statistics["radius"] = radius(features, targets)
        return statistics


def radius(features: Tensor, targets: Tensor) -> Tensor:
    """Return the square root of the mean variance of a feature within a class.

    >>> float(radius(torch.tensor([[1.0], [3.0], [9.0], [9.0]]), torch.tensor([0, 0, 1, 1])))
    1.0
    """
    variances = [features[targets == c].var(0).mean() for c in targets.unique()]
    return torch.stack(variances).mean().sqrt()
