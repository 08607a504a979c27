"""Elastic weight consolidation (EWC): a quadratic penalty weighted by Fisher information."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from remembering.baselines.importance import fisher, quadratic_penalty, stored, to_store
from remembering.baselines.single_adapter import SingleAdapter, parameters
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet


class EWC(SingleAdapter):
    """Add one quadratic penalty per learned task, weighted by that task's Fisher information.

    ℓ = ℓ_CE + λ / 2 Σ_t Σ_i F_{t,i} (θ_i − θ*_{t,i})²,

    where θ are the adapter and the head, θ*_t their values after task t, and F_t the diagonal of
    the Fisher information at θ*_t (see `importance.fisher`).

    Adaptation: the backbone is frozen and needs no penalty. The head grows; rows added after task t
    are not penalized for task t. F is estimated on `images` images, because it takes one backward
    pass per image.

    Defaults: `strength` (λ) was the best of 10⁴ ... 10¹¹ on held-out training images of
    scikit-learn's digits (`python scripts/choose_strengths.py digits-5 --methods ewc`); other
    experiments set their own (docs/baselines.md).
    """

    name = "ewc"
    title = "EWC"
    reference = (
        "Kirkpatrick et al. (2017), Overcoming catastrophic forgetting in neural networks, "
        "arXiv:1612.00796"
    )
    stores = "one adapter and one head, and per task a copy of both and their Fisher information"
    defaults: ClassVar[Mapping[str, float]] = {"strength": 1e9, "images": 200}

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        theta = parameters(batch.adapter, batch.head)
        for t in range(self.learned):
            importance, anchor = (stored(self.tensors, f"{part}.{t}") for part in ("fisher", "at"))
            penalty = quadratic_penalty(theta, importance, anchor)
            loss = loss + self.options["strength"] / 2 * penalty
        return loss

    def end(self, task: Task, training_set: TrainingSet) -> None:
        importance = fisher(self, training_set, int(self.options["images"]))
        self.tensors |= to_store(importance, f"fisher.{self.learned}")
        self.tensors |= to_store(parameters(self.adapter, self.head), f"at.{self.learned}")
