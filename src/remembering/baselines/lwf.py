"""Learning without forgetting: new images keep the answers that they had before the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.base import SingleAdapter
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet


class LwF(SingleAdapter):
    """Cross entropy on the new task, and distillation of the old outputs on the same images.

    ℓ = ℓ_CE + λ T² KL(softmax(z_old / T) ‖ softmax(z / T)),

    where z_old are the outputs that the old adapter and head gave for the new images before the
    task, over the classes known then, and z the outputs for those classes now. As in the paper,
    ℓ_CE is a softmax over the classes of the new task alone: the old ones are left to distillation.

    Adapted: to answer without knowing the task, the outputs of all tasks are compared as they are.
    A label that comes back is both learned and distilled. The paper distils each old task under a
    softmax of its own, and has no factor T²; here one softmax is over all old classes, as in most
    later work. The paper's warm-up, in which only the new outputs are trained, is left out: they
    start at zero.

    λ = 1 and T = 2 are the paper's. On training images of scikit-learn's digits that were held out,
    λ made no difference from 1 to 10, and ℓ_CE over all classes was worse by 28 points or more
    (`python scripts/choose_strengths.py digits-5 --per-class 40 --methods lwf`).
    """

    name = "lwf"
    title = "LwF"
    reference = "Li and Hoiem (2016), Learning without forgetting, arXiv:1606.09282"
    published = "LwF"
    stores = "one adapter and one head"
    defaults: ClassVar[Mapping[str, float]] = {"strength": 1.0, "temperature": 2.0}

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        self.old = (
            self.outputs(training_set.token_cache, len(training_set)) if self.learned else None
        )
        self.own = self.targets(task.classes)

    def loss(self, batch: Batch) -> Tensor:
        loss = own_cross_entropy(batch.outputs, batch.targets, self.own)
        if self.old is None:
            return loss
        old = self.outputs_before(batch, self.old)
        now = batch.outputs[:, : old.shape[1]]
        temperature = self.options["temperature"]
        return loss + self.options["strength"] * distillation(now, old, temperature)


def own_cross_entropy(outputs: Tensor, targets: Tensor, own: Tensor) -> Tensor:
    """Cross entropy over some of the outputs, as if there were no others."""
    others = torch.full_like(outputs, float("-inf"))
    others[:, own] = 0
    return F.cross_entropy(outputs + others, targets)


def distillation(now: Tensor, old: Tensor, temperature: float) -> Tensor:
    """T² KL(softmax(old / T) ‖ softmax(now / T)), mean over images; 0 where they agree.

    >>> z = torch.tensor([[1.0, 2.0]])
    >>> float(distillation(z, z, 2.0)), float(distillation(z, -z, 2.0)) > 0
    (0.0, True)
    """
    wanted = (old / temperature).log_softmax(1)
    said = (now / temperature).log_softmax(1)
    return temperature**2 * F.kl_div(said, wanted, reduction="batchmean", log_target=True)
