"""MUC: several classifiers of the last task, that differ where it does not bind them, are kept."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.base import SingleAdapter
from remembering.baselines.lwf import distillation, own_cross_entropy
from remembering.baselines.rotations import TURNS, Rotated
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import Batch, TrainingSet, shuffled
from remembering.runtime.seeding import generator


class MUC(SingleAdapter):
    """LwF with an ensemble: the old outputs of side classifiers are distilled, too (MUC-LwF).

    After a task, K side classifiers S_k on its classes are trained on its features φ(x), which now
    stand still, to agree on its images x and to disagree on images x̃ from elsewhere:

        ℓ_side = Σ_k ℓ_CE(S_k(φ(x))) − mean_{k < l} ‖softmax S_k(φ(x̃)) − softmax S_l(φ(x̃))‖₁.

    While task t (from 0) is learned, with D(z) = KL(softmax(z_old / T) ‖ softmax(z / T)),

        ℓ = (1 − α) ℓ_CE + α [D(main) + mean_k D(S_k)],   α = t / (t + 1),

    over the new images. Between them, the side classifiers hold down more directions of φ than the
    main one does. They give no answers themselves.

    Adapted: the paper has unlabelled images of another data set for x̃; these are the task's own,
    turned by 90, 180 or 270 degrees. Side classifiers stand still while the next task is learned,
    and those of the last task alone are kept (the authors distil no others). They start from the
    main classifier with a little noise, where the authors' start at random; and the gap is a sum
    over classes and a mean over pairs, where theirs is a mean over classes and a sum over pairs.
    Answers compare the outputs of all tasks as they are.

    K, T and α are the authors'.
    """

    name = "muc"
    title = "MUC"
    reference = (
        "Liu et al. (2020), More classifiers, less forgetting: a generic multi-classifier paradigm "
        "for incremental learning, ECCV"
    )
    published = "MUC"
    stores = "one adapter and one head, and the side classifiers of the last task"
    defaults: ClassVar[Mapping[str, float]] = {"sides": 3, "temperature": 2.0}

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        if self.options["sides"] < 2:
            raise RememberingError("MUC needs at least 2 side classifiers, which may disagree")
        self.own = self.targets(task.classes)
        if self.learned:
            self.old = self.features(training_set.token_cache, len(training_set))

    def loss(self, batch: Batch) -> Tensor:
        loss = own_cross_entropy(batch.outputs, batch.targets, self.own)
        if not self.learned:
            return loss
        features, temperature = self.features_before(batch, self.old), self.options["temperature"]
        old = F.linear(features, self.head.weight, self.head.bias)
        main = distillation(batch.outputs[:, : old.shape[1]], old, temperature)
        pairs = zip(self._sides(batch.features), self._sides(features), strict=True)
        sides = [distillation(now, then, temperature) for now, then in pairs]
        held = (main + torch.stack(sides).mean()) / temperature**2
        alpha = self.learned / (self.learned + 1)
        return (1 - alpha) * loss + alpha * held

    def end(self, task: Task, training_set: TrainingSet) -> None:
        """Train the side classifiers, from the main one with a little noise."""
        settings, sides = self.settings, int(self.options["sides"])
        turned = Rotated(self.backbone, task.images)
        token_cache = TokenCache(self.backbone, turned, settings.first_layer)
        features = self.features(token_cache, len(turned))
        own, others = features[: len(task)], features[len(task) :]
        targets = task.targets.to(own.device)
        rng = generator(settings.seed, "muc", self.learned)
        noise = torch.randn(sides, len(task.classes), own.shape[1], generator=rng).to(own)
        weight = (self.head.weight[self.own] + noise / own.shape[1]).requires_grad_()
        bias = self.head.bias[self.own].repeat(sides, 1).requires_grad_()
        self.tensors |= {"sides.weight": weight, "sides.bias": bias}
        optimizer = torch.optim.AdamW([weight, bias], settings.lr)
        for epoch in range(settings.epochs):
            for index in shuffled(len(task), settings, self.learned, epoch, "muc"):
                agree = sum(F.cross_entropy(s, targets[index]) for s in self._sides(own[index]))
                turns = torch.cat([index + k * len(task) for k in range(TURNS - 1)])
                apart = self._sides(others[turns]).softmax(2)
                gaps = [(a - b).abs().sum(1).mean() for a, b in combinations(apart, 2)]
                loss = agree - torch.stack(gaps).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self.tensors |= {"sides.weight": weight.detach(), "sides.bias": bias.detach()}

    def _sides(self, features: Tensor) -> Tensor:
        """What each side classifier says: (sides, n, classes of the last task)."""
        return features @ self.tensors["sides.weight"].mT + self.tensors["sides.bias"][:, None]

    @property
    def trained(self) -> int:
        sides = sum(t.numel() for name, t in self.tensors.items() if name.startswith("sides."))
        return super().trained + sides
