"""MUC: distillation through an ensemble of side classifiers of the last task."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.lwf import distillation, masked_cross_entropy
from remembering.baselines.rotations import RotatedImages
from remembering.baselines.single_adapter import SingleAdapter
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import Batch, TrainingSet, shuffled
from remembering.runtime.seeding import generator


class MUC(SingleAdapter):
    """Extend LwF by also distilling the old logits of an ensemble of side classifiers (MUC-LwF).

    After a task, K side classifiers S_k on its classes are trained on its features φ(x), which are
    fixed then, to agree on its images x and to disagree on images x̃ from elsewhere:

        ℓ_side = Σ_k ℓ_CE(S_k(φ(x))) − mean_{k < l} ‖softmax S_k(φ(x̃)) − softmax S_l(φ(x̃))‖₁.

    During task t (from 0), with D(z) = KL(softmax(z_old / T) ‖ softmax(z / T)),

        ℓ = (1 − α) ℓ_CE + α [D(main) + mean_k D(S_k)],   α = t / (t + 1),

    over the new images. Together, the side classifiers constrain more directions of φ than the main
    classifier does. They are not used for prediction.

    Adaptation: the paper takes x̃ from an unlabelled data set; here they are the task's own images
    rotated by 90, 180 or 270 degrees. Side classifiers are fixed while the next task is learned,
    and only those of the last task are stored (the authors distil no others). They start from the
    main classifier with a little noise, where the authors' start at random. The disagreement is a
    sum over classes and a mean over pairs, where theirs is a mean over classes and a sum over
    pairs. Predictions compare the logits of all tasks directly.

    Defaults: `sides` (K), `temperature` (T) and α are the authors'.
    """

    name = "muc"
    title = "MUC"
    reference = (
        "Liu et al. (2020), More classifiers, less forgetting: a generic multi-classifier paradigm "
        "for incremental learning, ECCV"
    )
    published = "MUC"
    stores = "one adapter, one head, and the side classifiers of the last task"
    defaults: ClassVar[Mapping[str, float]] = {"sides": 3, "temperature": 2.0}

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        if self.options["sides"] < 2:
            raise RememberingError(
                "MUC needs at least 2 side classifiers to disagree; set sides to 2 or more"
            )
        self.task_classes = self.targets(task.classes)
        if self.learned:
            self.old = self.features(training_set.token_cache, len(training_set))

    def loss(self, batch: Batch) -> Tensor:
        loss = masked_cross_entropy(batch.outputs, batch.targets, self.task_classes)
        if not self.learned:
            return loss
        features, temperature = self.features_before(batch, self.old), self.options["temperature"]
        old = F.linear(features, self.head.weight, self.head.bias)
        main = distillation(batch.outputs[:, : old.shape[1]], old, temperature)
        pairs = zip(self._side_logits(batch.features), self._side_logits(features), strict=True)
        sides = [distillation(logits, before, temperature) for logits, before in pairs]
        distilled = (main + torch.stack(sides).mean()) / temperature**2
        alpha = self.learned / (self.learned + 1)
        return (1 - alpha) * loss + alpha * distilled

    def end(self, task: Task, training_set: TrainingSet) -> None:
        """Train the side classifiers, starting from the main classifier with a little noise."""
        settings, sides = self.settings, int(self.options["sides"])
        rotated = RotatedImages(self.backbone, task.images)
        token_cache = TokenCache(self.backbone, rotated, settings.first_layer)
        features = self.features(token_cache, len(rotated))
        upright, outliers = features[: len(task)], features[len(task) :]
        dim, targets = upright.shape[1], task.targets.to(upright.device)
        rng = generator(settings.seed, "muc", self.learned)
        noise = torch.randn(sides, len(task.classes), dim, generator=rng).to(upright)
        weight = (self.head.weight[self.task_classes] + noise / dim).requires_grad_()
        bias = self.head.bias[self.task_classes].repeat(sides, 1).requires_grad_()
        self.tensors |= {"sides.weight": weight, "sides.bias": bias}
        optimizer = torch.optim.AdamW([weight, bias], settings.lr)
        for epoch in range(settings.epochs_for(len(task))):
            for index in shuffled(len(task), settings, self.learned, epoch, "muc"):
                logits = self._side_logits(upright[index])
                agreement = sum(F.cross_entropy(side, targets[index]) for side in logits)
                rows = torch.cat([index + k * len(task) for k in range(3)])
                probabilities = self._side_logits(outliers[rows]).softmax(2)
                gaps = [(a - b).abs().sum(1).mean() for a, b in combinations(probabilities, 2)]
                loss = agreement - torch.stack(gaps).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self.tensors |= {"sides.weight": weight.detach(), "sides.bias": bias.detach()}

    def _side_logits(self, features: Tensor) -> Tensor:
        """Return the logits of each side classifier: (sides, n, classes of the last task)."""
        return features @ self.tensors["sides.weight"].mT + self.tensors["sides.bias"][:, None]

    @property
    def trained(self) -> int:
        sides = sum(t.numel() for name, t in self.tensors.items() if name.startswith("sides."))
        return super().trained + sides
