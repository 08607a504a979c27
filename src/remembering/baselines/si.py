"""Synaptic intelligence: importance gathered along the way, from what each step gained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.baselines.base import SingleAdapter, parameters
from remembering.baselines.importance import NAMES, drift, stored, to_store
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet


class SI(SingleAdapter):
    """A quadratic penalty, weighted by how much each parameter's path lowered the loss.

    Along the steps of task t, ω_i ← ω_i − g_i Δθ_i with g the gradient of ℓ_CE alone. After it

        Ω_i ← Ω_i + max(0, ω_i) / ((θ_i − θ*_i)² + ξ),   and then θ* ← θ,

    where θ* is where the task began; ℓ = ℓ_CE + c Σ_i Ω_i (θ_i − θ*_i)².

    Adapted: adapter and head only. New rows of the head begin at 0 with Ω = 0. The gradient of the
    penalty is known in closed form, so it is taken off the sum instead of a second backward pass.

    c was the best of 0.01 ... 10⁴ on training images of scikit-learn's digits that were held out
    (`python scripts/choose_strengths.py digits-5 --methods si`); other experiments have their own
    (docs/rivals.md). ξ is the paper's on split MNIST.
    """

    name = "si"
    title = "SI"
    reference = (
        "Zenke et al. (2017), Continual learning through synaptic intelligence, arXiv:1703.04200"
    )
    stores = "one adapter and one head, and one copy of what they mattered to all tasks"
    defaults: ClassVar[Mapping[str, float]] = {"strength": 1.0, "damping": 1e-3}

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        head = self.head.extended(task.classes)
        self.start = parameters(self.adapter, head)
        self.path = {name: torch.zeros_like(value) for name, value in self.start.items()}
        self.importance = {name: torch.zeros_like(value) for name, value in self.start.items()}
        if self.learned:
            for name, old in stored(self.tensors, "importance").items():
                self.importance[name][: len(old)] = old

    def loss(self, batch: Batch) -> Tensor:
        now = parameters(batch.adapter, batch.head)
        penalty = drift(now, self.importance, self.start)
        return super().loss(batch) + self.options["strength"] * penalty

    @torch.no_grad()
    def on_backward_end(self, adapter: Adapter, head: Head) -> None:
        self.before, self.slope = {}, {}
        for name, value in parameters(adapter, head).items():
            moved = value - self.start[name]
            pull = 2 * self.options["strength"] * self.importance[name] * moved
            assert value.grad is not None
            self.slope[name] = value.grad - pull
            self.before[name] = value.detach().clone()

    @torch.no_grad()
    def on_step_end(self, adapter: Adapter, head: Head) -> None:
        for name, value in parameters(adapter, head).items():
            self.path[name] -= self.slope[name] * (value - self.before[name])

    def end(self, task: Task, training_set: TrainingSet) -> None:
        now = parameters(self.adapter, self.head)
        for name in NAMES:
            moved = (now[name] - self.start[name]).square()
            self.importance[name] += self.path[name].relu() / (moved + self.options["damping"])
        self.tensors |= to_store(self.importance, "importance")
