"""Base classes of methods with one head per task, which infer the task of an image."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.baselines.base import Baseline
from remembering.data.images import ImageSequence
from remembering.data.task import Task
from remembering.inference.token_cache import TokenCache, batches
from remembering.learning.training import Callback, TrainingSet, logits, train
from remembering.runtime.progress import Progress


@dataclass(frozen=True)
class DerivedAdapter(Adapter):
    """An adapter whose matrices are computed from the trained tensors `a` and `b`.

    Subclasses override `active` with this computation and may add further fields.
    """

    def trainable(self) -> Self:
        a, b = (t.detach().clone().requires_grad_() for t in (self.a, self.b))
        return replace(self, a=a, b=b)

    def frozen(self) -> Self:
        return replace(self, a=self.a.detach().clone(), b=self.b.detach().clone())


class Taskwise(Baseline, Callback):
    """Train one head per task, which later tasks do not change, with an adapter of the subclass.

    A label that reappears has an output in the head of each of its tasks.
    """

    @abstractmethod
    def new_adapter(self) -> Adapter:
        """Return the adapter with which the next task starts."""

    @abstractmethod
    def store_adapter(self, adapter: Adapter) -> None:
        """Store the trained adapter of the current task in `tensors`."""

    @abstractmethod
    def adapter(self, number: int) -> Adapter:
        """Return the adapter of a task."""

    def training_set(self, task: Task) -> TrainingSet:
        """Return the training set of a task; targets are rows of the task's head."""
        token_cache = TokenCache(self.backbone, task.images, self.settings.first_layer).filled()
        return TrainingSet(token_cache, task.targets, f"{task.name} ({self.title})", self.learned)

    def width(self, task: Task) -> int:
        """Return the number of outputs of a task's head."""
        return len(task.classes)

    def learn_task(self, task: Task, progress: Progress) -> None:
        data, number, settings = self.training_set(task), self.learned, self.settings
        adapter, head = self.new_adapter(), Head.linear(range(self.width(task)), self.backbone)
        adapter, head = train(
            self.backbone, adapter, head, data, settings, progress=progress, callback=self
        )
        self.store_adapter(adapter)
        self.tensors |= {
            f"{number}.weight": head.weight,
            f"{number}.bias": head.bias,
            f"{number}.classes": self.targets(task.classes),
        }

    def head(self, number: int) -> Head:
        """Return the head of a task."""
        weight, bias = self.tensors[f"{number}.weight"], self.tensors[f"{number}.bias"]
        return Head(tuple(range(len(bias))), weight, bias, torch.arange(len(bias)))

    def class_index(self, number: int) -> Tensor:
        """Return the positions in `classes` of the classes of a task."""
        return self.tensors[f"{number}.classes"]

    def task_logits(self, number: int, tokens: Tensor) -> Tensor:
        """Return the logits under the adapter and the head of a task: (n, outputs)."""
        return logits(self.backbone, self.adapter(number), self.head(number), tokens)

    @property
    def trained(self) -> int:
        return sum(self.head(number).parameters for number in range(self.learned))


class InferredTask(Taskwise):
    """Infer the task of each image first, then predict with its adapter and head alone."""

    @abstractmethod
    def infer_task(self, tokens: Tensor) -> Tensor:
        """Return the most likely task number of each image, independently of the others: (n,)."""

    @torch.no_grad()
    def scores(self, images: ImageSequence) -> Tensor:
        token_cache = TokenCache(self.backbone, images, self.settings.first_layer)
        result = torch.full((len(images), len(self.classes)), -torch.inf).to(self.backbone.device)
        for index in batches(len(images)):
            tokens = token_cache[index]
            inferred = self.infer_task(tokens)
            for number in inferred.unique().tolist():
                rows = (inferred == number).nonzero()
                log_probabilities = self.task_logits(number, tokens[rows[:, 0]]).log_softmax(1)
                columns = self.class_index(number)
                result[index.to(rows.device)[rows], columns] = log_probabilities
        return result
