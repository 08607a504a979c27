"""Learning without forgetting (LwF): distillation of old logits on new images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.single_adapter import SingleAdapter
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet


class LwF(SingleAdapter):
    """Combine cross entropy on the new task with distillation of old logits on the same images.

    ℓ = ℓ_CE + λ T² KL(softmax(z_old / T) ‖ softmax(z / T)),

    where z_old are the logits of the adapter and head before the task for the new images, over the
    classes known at that time, and z the current logits of those classes. As in the paper, ℓ_CE is
    a softmax over the classes of the new task alone; old classes are left to distillation.

    Adaptation: to predict without a task label, the logits of all tasks are compared directly. A
    label that reappears is both learned and distilled. The paper distils each old task with its own
    softmax and has no factor T²; here one softmax covers all old classes, as in most later work.
    The paper's warm-up, which trains the new outputs only, is omitted because they start at zero.

    Defaults: `strength` (λ) = 1 and `temperature` (T) = 2 are the paper's. On held-out training
    images of scikit-learn's digits, λ made no difference from 1 to 10, and ℓ_CE over all classes
    was worse by 28 points or more
    (`python scripts/choose_strengths.py digits-5 --per-class 40 --methods lwf`).
    """

    name = "lwf"
    title = "LwF"
    reference = "Li and Hoiem (2016), Learning without forgetting, arXiv:1606.09282"
    published = "LwF"
    stores = "one adapter and one head"
    defaults: ClassVar[Mapping[str, float]] = {"strength": 1.0, "temperature": 2.0}

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        self.task_classes = self.targets(task.classes)
        self.old = None
        if self.learned:
            self.old = self.outputs(training_set.token_cache, len(training_set))

    def loss(self, batch: Batch) -> Tensor:
        loss = masked_cross_entropy(batch.outputs, batch.targets, self.task_classes)
        if self.old is None:
            return loss
        old = self.outputs_before(batch, self.old)
        current = batch.outputs[:, : old.shape[1]]
        temperature = self.options["temperature"]
        return loss + self.options["strength"] * distillation(current, old, temperature)


def masked_cross_entropy(logits: Tensor, targets: Tensor, classes: Tensor) -> Tensor:
    """Return the cross entropy over some classes, ignoring the logits of all others."""
    mask = torch.full_like(logits, float("-inf"))
    mask[:, classes] = 0
    return F.cross_entropy(logits + mask, targets)


def distillation(logits: Tensor, old: Tensor, temperature: float) -> Tensor:
    """Return T² KL(softmax(old / T) ‖ softmax(logits / T)), averaged over images.

    >>> z = torch.tensor([[1.0, 2.0]])
    >>> float(distillation(z, z, 2.0)), float(distillation(z, -z, 2.0)) > 0
    (0.0, True)
    """
    target = (old / temperature).log_softmax(1)
    current = (logits / temperature).log_softmax(1)
    return temperature**2 * F.kl_div(current, target, reduction="batchmean", log_target=True)
