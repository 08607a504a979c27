"""SSRE: each task trains a side branch that is merged into what is kept; prototypes choose."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.baselines.prototypes import PrototypeReplay, distance
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet
from remembering.runtime.seeding import generator


class SSRE(PrototypeReplay):
    """Self-sustaining representation expansion, with prototype selection.

    From the second task on the kept branch is frozen, and a side branch beside it is trained and
    then merged: ΔW ← ΔW + B' A'. Images of the task that resemble an old class are to keep their
    features, the others are to be told apart:

        s(x) = max_c cos(f_old(x), μ_c)  over old classes c,  at least 0,
        ℓ = mean (1 − s) ℓ_CE + λ_d mean s ‖f(x) − f_old(x)‖ + λ_p CE(W μ_c + b, c).

    Adapted: the paper's side branch is a 1 × 1 convolution that folds into a 3 × 3 one. Here it is
    a LoRA branch of the rank of an adapter, and merging writes B' A' beside B A as more columns
    and rows: exact, and the kept adapter grows by this rank with each task. The side branch
    starts as every adapter does, with B' = 0. s is found once, before the task; it weighs, as in
    PyCIL's version, and no threshold divides the images. Outputs have no temperature.
    """

    name = "ssre"
    title = "SSRE"
    reference = (
        "Zhu et al. (2022), Self-sustaining representation expansion for non-exemplar "
        "class-incremental learning, arXiv:2203.06359"
    )
    published = "SSRE"
    stores = "one adapter that grows by its rank with each task, one head, and class means"

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        super().begin(task, training_set)
        self.main = self.adapter
        if self.learned:
            means = F.normalize(self.tensors["means"])
            self.likeness = (F.normalize(self.old) @ means.mT).amax(1).relu()
            rng = generator(self.settings.seed, "ssre", "branch", self.learned)
            rank, first_layer = self.settings.rank, self.settings.first_layer
            self.adapter = merged(self.main, Adapter.new(self.backbone, rank, first_layer, rng))

    def loss(self, batch: Batch) -> Tensor:
        if not self.learned:
            return super().loss(batch)
        alike = self.likeness[batch.index]
        new = F.cross_entropy(batch.outputs, batch.targets, reduction="none")
        moved = distance(batch.features, self.features_before(batch, self.old))
        return (
            ((1 - alike) * new).mean()
            + self.options["distil"] * (alike * moved).mean()
            + self.options["replay"] * self.recalled(batch)
        )

    @torch.no_grad()
    def on_step_end(self, adapter: Adapter, head: Head) -> None:
        """The kept branch stays what it was."""
        if self.learned:
            adapter.a[:, :, : self.main.rank] = self.main.a
            adapter.b[..., : self.main.rank] = self.main.b

    @property
    def trained(self) -> int:
        """One branch and the head; the branches before are frozen."""
        branch = self.adapter.parameters * self.settings.rank // self.adapter.rank
        return branch + self.head.parameters


def merged(main: Adapter, side: Adapter) -> Adapter:
    """One adapter that adds what both add: [B B'] [A; A'] = B A + B' A'."""
    a, b = torch.cat([main.a, side.a], dim=2), torch.cat([main.b, side.b], dim=3)
    return Adapter(a, b, main.first_layer)
