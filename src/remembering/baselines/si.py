"""Synaptic intelligence (SI): importance accumulated during training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.baselines.importance import PathImportance, stored, to_store
from remembering.baselines.single_adapter import SingleAdapter, parameters
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet


class SI(SingleAdapter):
    """Penalize changes of parameters by how much their path has reduced the loss so far.

    In each step of task t, ω_i ← ω_i − g_i Δθ_i with g the gradient of ℓ_CE alone. After the task

        Ω_i ← Ω_i + max(0, ω_i) / ((θ_i − θ*_i)² + ξ),   and then θ* ← θ,

    where θ* are the parameters at the start of the task; ℓ = ℓ_CE + c Σ_i Ω_i (θ_i − θ*_i)².

    Adaptation: applies to adapter and head only. New rows of the head start at 0 with Ω = 0. The
    gradient of the penalty is known in closed form and is subtracted, instead of a second backward
    pass.

    Defaults: `strength` (c) was the best of 0.01 ... 10⁴ on held-out training images of
    scikit-learn's digits (`python scripts/choose_strengths.py digits-5 --methods si`); other
    experiments set their own (docs/baselines.md). `damping` (ξ) is the paper's value for split MNIST.
    """

    name = "si"
    title = "SI"
    reference = (
        "Zenke et al. (2017), Continual learning through synaptic intelligence, arXiv:1703.04200"
    )
    stores = "one adapter and one head, and one importance value per parameter"
    defaults: ClassVar[Mapping[str, float]] = {"strength": 1.0, "damping": 1e-3}

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        start = parameters(self.adapter, self.head.extended(task.classes))
        old = stored(self.tensors, "importance") if self.learned else {}
        self.path = PathImportance(start, old, self.options["strength"])

    def loss(self, batch: Batch) -> Tensor:
        return super().loss(batch) + self.path.penalty(parameters(batch.adapter, batch.head))

    def on_backward_end(self, adapter: Adapter, head: Head) -> None:
        theta = parameters(adapter, head)
        self.before = {name: value.detach().clone() for name, value in theta.items()}

    def on_step_end(self, adapter: Adapter, head: Head) -> None:
        self.path.update(parameters(adapter, head), self.before)

    def end(self, task: Task, training_set: TrainingSet) -> None:
        theta = parameters(self.adapter, self.head)
        self.tensors |= to_store(
            self.path.importance_after(theta, self.options["damping"]), "importance"
        )
