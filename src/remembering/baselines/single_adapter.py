"""Base classes of baselines that train one adapter."""

from __future__ import annotations

import torch
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.baselines.base import Baseline
from remembering.data.images import ImageSequence
from remembering.data.task import Task
from remembering.inference.token_cache import TokenCache, batches
from remembering.learning.training import Batch, Callback, TrainingSet, adapted, logits, train
from remembering.runtime.progress import Progress
from remembering.runtime.seeding import generator


class SingleAdapter(Baseline, Callback):
    """Base class of methods that train one adapter and one head over all classes so far.

    A method changes training as a `training.Callback`: the loss, the gradients, or what happens
    after each step. `begin` and `end` are called before and after the training of a task, and
    `training_set` defines its inputs.
    """

    def set_up(self) -> None:
        self.start_anew()

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        """Prepare the training of a task; `adapter` and `head` are those of the tasks before."""

    def end(self, task: Task, training_set: TrainingSet) -> None:
        """Conclude the training of a task; `adapter` and `head` are the trained ones."""

    def training_set(self, task: Task, head: Head) -> TrainingSet:
        """Return the inputs and targets for the training of a task."""
        token_cache = TokenCache(self.backbone, task.images, self.settings.first_layer).filled()
        name = f"{task.name} ({self.title})"
        return TrainingSet(token_cache, head.targets(task.labels), name, self.learned)

    def start_anew(self) -> None:
        """Initialize the adapter and the head."""
        settings = self.settings
        rng = generator(settings.seed, "baseline")
        self.adapter = Adapter.new(self.backbone, settings.rank, settings.first_layer, rng)
        self.head = Head.linear((), self.backbone)

    def learn_task(self, task: Task, progress: Progress) -> None:
        head = self.head.extended(task.classes)
        training_set = self.training_set(task, head)
        self.begin(task, training_set)
        self.adapter, self.head = train(
            self.backbone,
            self.adapter,
            head,
            training_set,
            self.settings,
            progress=progress,
            callback=self,
        )
        self.end(task, training_set)

    @torch.no_grad()
    def scores(self, images: ImageSequence) -> Tensor:
        token_cache = TokenCache(self.backbone, images, self.settings.first_layer)
        return self.outputs(token_cache, len(images))

    @torch.no_grad()
    def outputs(self, token_cache: TokenCache, count: int) -> Tensor:
        """Return the logits (n, classes of the head) of the first `count` images."""
        adapter, head = self.adapter, self.head
        parts = [
            logits(self.backbone, adapter, head, token_cache[index]) for index in batches(count)
        ]
        return torch.cat(parts)

    @torch.no_grad()
    def features(self, token_cache: TokenCache, count: int) -> Tensor:
        """Return the inputs of the head (n, dim) for the first `count` images."""
        pool, adapter = self.backbone.pool, self.adapter
        parts = [
            pool(adapted(self.backbone, adapter, token_cache[index])) for index in batches(count)
        ]
        return torch.cat(parts)

    def outputs_before(self, batch: Batch, kept: Tensor) -> Tensor:
        """Return the logits of a batch before the task in training.

        Args:
            batch: The batch.
            kept: Logits of all images; used unless images are augmented.
        """
        if self.settings.augment == "none":
            return kept[batch.index]
        with torch.no_grad():
            return logits(self.backbone, self.adapter, self.head, batch.tokens)

    def features_before(self, batch: Batch, kept: Tensor) -> Tensor:
        """Return the inputs of the head for a batch before the task in training.

        Args:
            batch: The batch.
            kept: Features of all images; used unless images are augmented.
        """
        if self.settings.augment == "none":
            return kept[batch.index]
        with torch.no_grad():
            return self.backbone.pool(adapted(self.backbone, self.adapter, batch.tokens))

    @property
    def adapter(self) -> Adapter:
        """The adapter."""
        kept = self.tensors
        return Adapter(kept["adapter.a"], kept["adapter.b"], self.settings.first_layer)

    @adapter.setter
    def adapter(self, adapter: Adapter) -> None:
        self.tensors |= {"adapter.a": adapter.a, "adapter.b": adapter.b}

    @property
    def head(self) -> Head:
        """The head; within `learn_task` it has the classes of the tasks before."""
        weight = self.tensors["head.weight"]
        rows = len(weight)
        return Head(self.classes[:rows], weight, self.tensors["head.bias"], torch.arange(rows))

    @head.setter
    def head(self, head: Head) -> None:
        self.tensors |= {"head.weight": head.weight, "head.bias": head.bias}

    @property
    def trained(self) -> int:
        return self.adapter.parameters + self.head.parameters


def parameters(adapter: Adapter, head: Head) -> dict[str, Tensor]:
    """Return the parameters that training changes, by name."""
    return {"a": adapter.a, "b": adapter.b, "weight": head.weight, "bias": head.bias}
