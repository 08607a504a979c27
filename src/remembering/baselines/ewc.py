"""Elastic weight consolidation: parameters that mattered to a task are held where it left them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from remembering.baselines.base import SingleAdapter, parameters
from remembering.baselines.importance import drift, fisher, stored, to_store
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet


class EWC(SingleAdapter):
    """One quadratic penalty for each task learned, weighted by that task's Fisher information.

    ℓ = ℓ_CE + λ / 2 Σ_t Σ_i F_{t,i} (θ_i − θ*_{t,i})²,

    where θ are the adapter and the head, θ*_t what they were after task t, and F_t the diagonal of
    the Fisher information there (see importance.py).

    Adapted: the backbone is frozen and needs no penalty; the head grows, and rows that came after
    task t are free of its penalty. F is taken over `images` images, as one pass each is slow.

    λ was the best of 10⁴ ... 10¹¹ on training images of scikit-learn's digits that were held out
    (`python scripts/choose_strengths.py digits-5 --methods ewc`); other experiments have their own
    (docs/rivals.md).
    """

    name = "ewc"
    title = "EWC"
    reference = (
        "Kirkpatrick et al. (2017), Overcoming catastrophic forgetting in neural networks, "
        "arXiv:1612.00796"
    )
    stores = (
        "one adapter and one head, and for each task a copy of them and of what they mattered to it"
    )
    defaults: ClassVar[Mapping[str, float]] = {"strength": 1e9, "images": 200}

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        now = parameters(batch.adapter, batch.head)
        for t in range(self.learned):
            importance, anchor = (stored(self.tensors, f"{what}.{t}") for what in ("fisher", "at"))
            loss = loss + self.options["strength"] / 2 * drift(now, importance, anchor)
        return loss

    def end(self, task: Task, training_set: TrainingSet) -> None:
        importance = fisher(self, training_set, int(self.options["images"]))
        self.tensors |= to_store(importance, f"fisher.{self.learned}")
        self.tensors |= to_store(parameters(self.adapter, self.head), f"at.{self.learned}")
