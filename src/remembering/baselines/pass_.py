"""PASS: noisy prototypes stand for old classes, and rotated images make features that last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.backbones.backbone import Backbone
from remembering.baselines.prototypes import PrototypeReplay, distance, pooled
from remembering.data.images import ImageSequence
from remembering.data.task import Task
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import Batch, TrainingSet


class PASS(PrototypeReplay):
    """Prototype augmentation and self-supervision.

    ℓ = ℓ_CE + λ_d mean ‖f(x) − f_old(x)‖ + λ_p CE(W p̃_c + b, c),   p̃_c = μ_c + r ε,   ε ~ N(0, I),

    where μ_c is the mean feature of the old class c, and r² the mean variance of a feature within
    a class of the first task. Each image also comes turned by 90°, 180° and 270°; a turned class
    is a class of its own, and ℓ_CE and the distance are means over the images in all turns.

    Adapted: adapter and head only. The rows of turned classes take part in all cross entropies of
    their task and are let go after it, as no answer reads them. The paper divides outputs by a
    temperature of 0.1, for a network that starts from nothing; here they are as they are.
    """

    name = "pass"
    title = "PASS"
    reference = (
        "Zhu et al. (2021), Prototype augmentation and self-supervision for incremental learning, "
        "CVPR 2021"
    )
    published = "PASS"
    stores = "one adapter and one head, the mean feature of each class, and one radius for all"
    defaults: ClassVar[Mapping[str, float]] = {**PrototypeReplay.defaults, "turns": 3}

    def spare(self, task: Task) -> int:
        return int(self.options["turns"]) * len(task.classes)

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        turns = range(1, int(self.options["turns"]) + 1)
        images = [Turned(self.backbone, task.images, turn) for turn in turns]
        first_layer = self.settings.first_layer
        self.turned = [TokenCache(self.backbone, each, first_layer).filled() for each in images]
        self.within = task.targets
        views = [training_set.token_cache, *self.turned]
        if self.learned:
            self.old = torch.stack([self.features(view, len(training_set)) for view in views])

    def loss(self, batch: Batch) -> Tensor:
        features, outputs, targets = [batch.features], [batch.outputs], [batch.targets]
        turned_class = len(self.classes) + self.within[batch.index].to(batch.targets.device)
        for token_cache in self.turned:
            features.append(pooled(self, batch.adapter, token_cache[batch.index]))
            outputs.append(F.linear(features[-1], batch.head.weight, batch.head.bias))
            targets.append(turned_class)
            turned_class = turned_class + int(self.within.max()) + 1
        loss = F.cross_entropy(torch.cat(outputs), torch.cat(targets))
        if not self.learned:
            return loss
        old = [self.features_before(batch, self.old[0]), *self.old[1:, batch.index]]
        moved = distance(torch.cat(features), torch.cat(old)).mean()
        return loss + self.options["distil"] * moved + self.options["replay"] * self.recalled(batch)

    def recalled_outputs(self, head: Head, drawn: Tensor, rng: torch.Generator) -> Tensor:
        means = self.tensors["means"][drawn]
        noise = torch.randn(means.shape, generator=rng).to(means)
        return F.linear(means + self.tensors["radius"] * noise, head.weight, head.bias)

    def summary(self, features: Tensor, targets: Tensor) -> dict[str, Tensor]:
        kept = super().summary(features, targets)
        if not self.learned:
            kept["radius"] = radius(features, targets)
        return kept


def radius(features: Tensor, targets: Tensor) -> Tensor:
    """√ of the mean variance of a feature within a class.

    >>> float(radius(torch.tensor([[1.0], [3.0], [9.0], [9.0]]), torch.tensor([0, 0, 1, 1])))
    1.0
    """
    spread = [features[targets == c].var(0).mean() for c in targets.unique()]
    return torch.stack(spread).mean().sqrt()


@dataclass(frozen=True)
class Turned:
    """Images at the backbone's size, turned by so many times 90°."""

    backbone: Backbone
    images: ImageSequence
    turns: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.backbone.shrink(self.images[index]).rot90(self.turns, (2, 3))
