"""DER++: a random sample of past images, replayed with their labels and past logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.baselines.exemplars import with_memory
from remembering.baselines.single_adapter import SingleAdapter
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.learning.replay import kept_images
from remembering.learning.training import Batch, TrainingSet, logits
from remembering.runtime.seeding import generator


class DER(SingleAdapter):
    """Apply dark experience replay with labels ("++").

    ℓ = ℓ_CE(x, y) + α E_{(x', z')} ‖z' − h(x')‖² + β E_{(x'', y'')} ℓ_CE(h(x''), y''),

    where h are the logits, the squares are averaged over the logits, and x', x'' are two batches
    drawn from a buffer of `memory` images. The buffer is a reservoir: every image of every step so
    far is in it with equal probability. Each image is stored with its label y and with the logits
    z of the step in which it was added, while training was in progress.

    Adaptation: the head grows, so z' covers the classes known when the image was added, and only
    those are compared; the paper has outputs for all classes from the start. The paper augments
    images; here new images are augmented if the experiment says so, buffered images never.

    Defaults: `alpha`, `beta` and `memory` are the authors' for CIFAR-10 with the smallest buffer. A
    comparison allows the same number of images as for other methods with a replay memory.
    """

    name = "der"
    title = "DER++"
    reference = (
        "Buzzega et al. (2020), Dark experience for general continual learning: a strong, simple "
        "baseline, arXiv:2004.07211"
    )
    published = "DER++"
    stores = "one adapter, one head, and a buffer of images with their labels and past logits"
    defaults: ClassVar[Mapping[str, float]] = {"memory": 200, "alpha": 0.1, "beta": 0.5}

    def training_set(self, task: Task, head: Head) -> TrainingSet:
        """Return the images of the task, followed in the token cache by those of the buffer."""
        if self.options["memory"] < 1:
            raise RememberingError("DER++ needs a memory of at least 1 image")
        if not self.learned:
            return super().training_set(task, head)
        buffer = self.tensors["buffer.images"].cpu()
        return with_memory(self, task, head, buffer, targets=torch.empty(0, dtype=torch.long))

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        self.token_cache = training_set.token_cache
        self.rng = generator(self.settings.seed, "der", self.learned)
        self.seen: int = self.extra_state.get("seen", 0)
        size, width = int(self.options["memory"]), len(self.classes)
        self.past_logits = torch.zeros(size, width, device=self.backbone.device)
        self.buffer_targets, self.known, self.positions = torch.zeros(3, size, dtype=torch.long)
        if self.learned:
            stored = self.tensors["buffer.answers"]
            filled, known = stored.shape
            self.past_logits[:filled, :known] = stored
            self.buffer_targets[:filled] = self.tensors["buffer.targets"].cpu()
            self.known[:filled] = self.tensors["buffer.known"].cpu()
            self.positions[:filled] = len(training_set) + torch.arange(filled)

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        if self.seen:
            outputs, slots = self._replay(batch)
            known = torch.arange(outputs.shape[1]) < self.known[slots, None]
            distillation = F.mse_loss(outputs[known], self.past_logits[slots][known])
            loss = loss + self.options["alpha"] * distillation
            outputs, slots = self._replay(batch)
            past = F.cross_entropy(outputs, self.buffer_targets[slots].to(outputs.device))
            loss = loss + self.options["beta"] * past
        self._update_reservoir(batch)
        return loss

    def end(self, task: Task, training_set: TrainingSet) -> None:
        images, filled = training_set.token_cache.images, slice(0, self._filled)
        self.tensors |= {
            "buffer.images": kept_images(self.backbone, images, self.positions[filled]),
            "buffer.answers": self.past_logits[filled].clone(),
            "buffer.targets": self.buffer_targets[filled].clone(),
            "buffer.known": self.known[filled].clone(),
        }
        self.extra_state["seen"] = self.seen

    @property
    def _filled(self) -> int:
        """Number of buffer slots in use."""
        return min(self.seen, len(self.positions))

    def _replay(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the current logits of a random batch from the buffer, and its slots."""
        slots = torch.randperm(self._filled, generator=self.rng)[: self.settings.batch_size]
        tokens = self.token_cache[self.positions[slots]]
        return logits(self.backbone, batch.adapter, batch.head, tokens), slots

    def _update_reservoir(self, batch: Batch) -> None:
        """Apply reservoir sampling to the images of this step."""
        size = len(self.positions)
        for row, position in enumerate(batch.index.tolist()):
            slot = self.seen
            if slot >= size:
                slot = int(torch.randint(self.seen + 1, (), generator=self.rng))
            if slot < size:
                self.positions[slot] = position
                self.buffer_targets[slot] = batch.targets[row]
                self.past_logits[slot] = batch.outputs[row].detach()
                self.known[slot] = batch.outputs.shape[1]
            self.seen += 1
