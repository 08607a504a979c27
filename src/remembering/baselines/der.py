"""DER++: a random sample of the past, replayed with its labels and with the answers it had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.baselines.base import SingleAdapter
from remembering.data.images import joined
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.token_cache import TokenCache
from remembering.learning.replay import kept_images
from remembering.learning.training import Batch, TrainingSet, logits
from remembering.runtime.seeding import generator


class DER(SingleAdapter):
    """Dark experience replay, with labels too ("++").

    ℓ = ℓ_CE(x, y) + α E_{(x', z')} ‖z' − h(x')‖² + β E_{(x'', y'')} ℓ_CE(h(x''), y''),

    where h are the outputs before the softmax, the squares are averaged over outputs, and x', x''
    are two draws of a batch each from a buffer of `memory` images. The buffer is a reservoir: of
    all images of all steps so far, each is in it with equal chance. With an image go its label y
    and the outputs z it had at the step in which it came, in the midst of training.

    Adapted: the head grows, so z' has the classes known when the image came and only those are
    compared; the paper has outputs for all classes from the start. The paper augments images; here
    new ones are if the experiment says so, those of the buffer never.

    α, β and the size of the buffer are the authors' for CIFAR-10 with the smallest buffer. A
    comparison gives it as many images as other methods with a memory.
    """

    name = "der"
    title = "DER++"
    reference = (
        "Buzzega et al. (2020), Dark experience for general continual learning: a strong, simple "
        "baseline, arXiv:2004.07211"
    )
    published = "DER++"
    stores = "one adapter and one head, and a buffer of images with labels and old outputs"
    defaults: ClassVar[Mapping[str, float]] = {"memory": 200, "alpha": 0.1, "beta": 0.5}

    def training_set(self, task: Task, head: Head) -> TrainingSet:
        """The images of the task, and behind them those of the buffer."""
        if self.options["memory"] < 1:
            raise RememberingError("DER++ needs a memory of at least 1 image")
        training_set = super().training_set(task, head)
        if not self.learned:
            return training_set
        images = joined([task.images, self.tensors["buffer.images"].cpu()])
        token_cache = TokenCache(self.backbone, images, self.settings.first_layer).filled()
        return TrainingSet(
            token_cache, training_set.targets, training_set.name, training_set.number
        )

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        self.token_cache, self.rng = (
            training_set.token_cache,
            generator(self.settings.seed, "der", self.learned),
        )
        self.seen: int = self.extra_state.get("seen", 0)
        size, width = int(self.options["memory"]), len(self.classes)
        self.answers = torch.zeros(size, width, device=self.backbone.device)
        self.labels, self.known, self.where = torch.zeros(3, size, dtype=torch.long)
        if self.learned:
            answers = self.tensors["buffer.answers"]
            held, before = answers.shape
            self.answers[:held, :before] = answers
            self.labels[:held] = self.tensors["buffer.targets"].cpu()
            self.known[:held] = self.tensors["buffer.known"].cpu()
            self.where[:held] = len(training_set) + torch.arange(held)

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        if self.seen:
            said, slots = self._replayed(batch)
            known = torch.arange(said.shape[1]) < self.known[slots, None]
            moved = F.mse_loss(said[known], self.answers[slots][known])
            loss = loss + self.options["alpha"] * moved
            said, slots = self._replayed(batch)
            past = F.cross_entropy(said, self.labels[slots].to(said.device))
            loss = loss + self.options["beta"] * past
        self._sample(batch)
        return loss

    def end(self, task: Task, training_set: TrainingSet) -> None:
        held = slice(0, min(self.seen, len(self.where)))
        self.tensors |= {
            "buffer.images": kept_images(
                self.backbone, training_set.token_cache.images, self.where[held]
            ),
            "buffer.answers": self.answers[held].clone(),
            "buffer.targets": self.labels[held].clone(),
            "buffer.known": self.known[held].clone(),
        }
        self.extra_state["seen"] = self.seen

    def _replayed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What is said now of a batch from the buffer, and which slots it came from."""
        held = min(self.seen, len(self.where))
        slots = torch.randperm(held, generator=self.rng)[: self.settings.batch_size]
        tokens = self.token_cache[self.where[slots]]
        return logits(self.backbone, batch.adapter, batch.head, tokens), slots

    def _sample(self, batch: Batch) -> None:
        """Offer each image of this step to the reservoir."""
        size = len(self.where)
        for row, position in enumerate(batch.index.tolist()):
            slot = self.seen
            if slot >= size:
                slot = int(torch.randint(self.seen + 1, (), generator=self.rng))
            if slot < size:
                self.where[slot] = position
                self.labels[slot] = batch.targets[row]
                self.answers[slot] = batch.outputs[row].detach()
                self.known[slot] = batch.outputs.shape[1]
            self.seen += 1
