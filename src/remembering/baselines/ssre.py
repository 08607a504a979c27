"""SSRE: a side branch per task, merged into the main branch, with prototype selection."""

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
    """Apply self-sustaining representation expansion with prototype selection.

    From the second task on, the main branch is frozen; a side branch is trained beside it and then
    merged: ΔW ← ΔW + B' A'. Images of the task that resemble an old class should keep their
    features, the others should be classified correctly:

        s(x) = max_c cos(f_old(x), μ_c)  over old classes c,  at least 0,
        ℓ = mean (1 − s) ℓ_CE + λ_d mean s ‖f(x) − f_old(x)‖ + λ_p CE(W μ_c + b, c).

    Adaptation: the paper's side branch is a 1 × 1 convolution that folds into a 3 × 3 one. Here it
    is a LoRA branch with the rank of an adapter, and merging appends B' A' to B A as additional
    columns and rows. This is exact, and the stored adapter grows by this rank with each task. The
    side branch starts like every adapter, with B' = 0. s is computed once, before the task; as in
    PyCIL's version it is a weight, and no threshold divides the images. Logits have no temperature.

    Defaults: see `PrototypeReplay`.
    """

    name = "ssre"
    title = "SSRE"
    reference = (
        "Zhu et al. (2022), Self-sustaining representation expansion for non-exemplar "
        "class-incremental learning, arXiv:2203.06359"
    )
    published = "SSRE"
    stores = "one adapter whose rank grows with each task, one head, and the mean of each class"

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        super().begin(task, training_set)
        self.main = self.adapter
        if self.learned:
            means = F.normalize(self.tensors["means"])
            self.similarity = (F.normalize(self.old) @ means.mT).amax(1).relu()
            rng = generator(self.settings.seed, "ssre", "branch", self.learned)
            rank, first_layer = self.settings.rank, self.settings.first_layer
            self.adapter = merged(self.main, Adapter.new(self.backbone, rank, first_layer, rng))

    def loss(self, batch: Batch) -> Tensor:
        if not self.learned:
            return super().loss(batch)
        similarity = self.similarity[batch.index]
        losses = F.cross_entropy(batch.outputs, batch.targets, reduction="none")
        changes = distance(batch.features, self.features_before(batch, self.old))
        return (
            ((1 - similarity) * losses).mean()
            + self.options["distil"] * (similarity * changes).mean()
            + self.options["replay"] * self.replay_loss(batch)
        )

    @torch.no_grad()
    def on_step_end(self, adapter: Adapter, head: Head) -> None:
        """Restore the frozen main branch."""
        if self.learned:
            adapter.a[:, :, : self.main.rank] = self.main.a
            adapter.b[..., : self.main.rank] = self.main.b

    @property
    def trained(self) -> int:
        """Parameters of one branch and the head; earlier branches are frozen."""
        branch = self.adapter.parameters * self.settings.rank // self.adapter.rank
        return branch + self.head.parameters


def merged(main: Adapter, side: Adapter) -> Adapter:
    """Return one adapter equivalent to the sum of two: [B B'] [A; A'] = B A + B' A'."""
    a, b = torch.cat([main.a, side.a], dim=2), torch.cat([main.b, side.b], dim=3)
    return Adapter(a, b, main.first_layer)
