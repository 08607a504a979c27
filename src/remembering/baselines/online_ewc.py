"""Online EWC: one running penalty for all tasks, however many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from remembering.baselines.base import SingleAdapter, parameters
from remembering.baselines.importance import NAMES, drift, fisher, stored, to_store
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet


class OnlineEWC(SingleAdapter):
    """EWC with one anchor, the last parameters, and a Fisher information that may fade.

    ℓ = ℓ_CE + λ / 2 Σ_i F̃_i (θ_i − θ*_i)²,   F̃ ← γ F̃ + F_t after task t,

    where γ (`decay`) is 1 unless told otherwise: a plain sum.

    Adapted as EWC is: adapter and head only; rows of new classes start with F̃ = 0. The paper's
    rescaling of the Fisher information of each task is left out.

    λ was chosen as EWC's was.
    """

    name = "online_ewc"
    title = "Online EWC"
    reference = (
        "Schwarz et al. (2018), Progress & compress: a scalable framework for continual learning, "
        "arXiv:1805.06370"
    )
    stores = "one adapter and one head, and one copy of what they mattered to all tasks"
    defaults: ClassVar[Mapping[str, float]] = {"strength": 1e9, "decay": 1.0, "images": 200}

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        if not self.learned:
            return loss
        now, anchor = parameters(batch.adapter, batch.head), parameters(self.adapter, self.head)
        penalty = drift(now, stored(self.tensors, "fisher"), anchor)
        return loss + self.options["strength"] / 2 * penalty

    def end(self, task: Task, training_set: TrainingSet) -> None:
        importance = fisher(self, training_set, int(self.options["images"]))
        if self.learned:
            for name in NAMES:
                old = self.tensors[f"fisher.{name}"]
                importance[name][: len(old)] += self.options["decay"] * old
        self.tensors |= to_store(importance, "fisher")
