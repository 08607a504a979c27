"""Online EWC: one running penalty for all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from remembering.baselines.importance import fisher, quadratic_penalty, stored, to_store
from remembering.baselines.single_adapter import SingleAdapter, parameters
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet


class OnlineEWC(SingleAdapter):
    """Apply EWC with one anchor, the latest parameters, and a running Fisher information.

    ℓ = ℓ_CE + λ / 2 Σ_i F̃_i (θ_i − θ*_i)²,   F̃ ← γ F̃ + F_t after task t.

    Adaptation: as for EWC, adapter and head only; rows of new classes start with F̃ = 0. The paper's
    rescaling of each task's Fisher information is omitted.

    Defaults: `decay` (γ) = 1 makes F̃ a plain sum. `strength` (λ) was chosen as for EWC.
    """

    name = "online_ewc"
    title = "Online EWC"
    reference = (
        "Schwarz et al. (2018), Progress & compress: a scalable framework for continual learning, "
        "arXiv:1805.06370"
    )
    stores = "one adapter and one head, and one running Fisher information for all tasks"
    defaults: ClassVar[Mapping[str, float]] = {"strength": 1e9, "decay": 1.0, "images": 200}

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        if not self.learned:
            return loss
        theta, anchor = parameters(batch.adapter, batch.head), parameters(self.adapter, self.head)
        penalty = quadratic_penalty(theta, stored(self.tensors, "fisher"), anchor)
        return loss + self.options["strength"] / 2 * penalty

    def end(self, task: Task, training_set: TrainingSet) -> None:
        importance = fisher(self, training_set, int(self.options["images"]))
        if self.learned:
            for name, old in stored(self.tensors, "fisher").items():
                importance[name][: len(old)] += self.options["decay"] * old
        self.tensors |= to_store(importance, "fisher")
