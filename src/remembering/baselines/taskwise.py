"""A head for each task: what methods share that must find out whose task an image is of."""

from __future__ import annotations

from abc import abstractmethod

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


class Taskwise(Baseline, Callback):
    """One head a task, of which nothing changes later; a method says what adapter goes with it.

    A label that comes back has an output in the head of each of its tasks.
    """

    @abstractmethod
    def new_adapter(self) -> Adapter:
        """What the next task starts with."""

    @abstractmethod
    def keep(self, adapter: Adapter) -> None:
        """Put what the task has made of it into `tensors`."""

    @abstractmethod
    def adapter(self, number: int) -> Adapter:
        """What belongs to this task."""

    def training_set(self, task: Task) -> TrainingSet:
        """What a task is trained on; its targets are rows of its own head."""
        token_cache = TokenCache(self.backbone, task.images, self.settings.first_layer).filled()
        return TrainingSet(token_cache, task.targets, f"{task.name} ({self.title})", self.learned)

    def width(self, task: Task) -> int:
        """How many outputs the head of a task has."""
        return len(task.classes)

    def learn_task(self, task: Task, progress: Progress) -> None:
        training_set, number = self.training_set(task), self.learned
        head = Head.linear(range(self.width(task)), self.backbone)
        adapter, head = train(
            self.backbone,
            self.new_adapter(),
            head,
            training_set,
            self.settings,
            None,
            progress,
            callback=self,
        )
        self.keep(adapter)
        self.tensors |= {
            f"{number}.weight": head.weight,
            f"{number}.bias": head.bias,
            f"{number}.classes": self.targets(task.classes),
        }

    def head(self, number: int) -> Head:
        """The head of this task."""
        weight, bias = self.tensors[f"{number}.weight"], self.tensors[f"{number}.bias"]
        return Head(tuple(range(len(bias))), weight, bias, torch.arange(len(bias)))

    def owned(self, number: int) -> Tensor:
        """Positions in `classes` of the classes of this task."""
        return self.tensors[f"{number}.classes"]

    def said(self, number: int, tokens: Tensor) -> Tensor:
        """Outputs under the adapter and the head of this task: (n, outputs)."""
        return logits(self.backbone, self.adapter(number), self.head(number), tokens)

    @property
    def trained(self) -> int:
        return sum(self.head(number).parameters for number in range(self.learned))


class InferredTask(Taskwise):
    """Looks for the task first; its adapter and head alone then answer."""

    @abstractmethod
    def choose(self, tokens: Tensor) -> Tensor:
        """Number of the task that each image, looked at alone, seems to be of: (n,)."""

    @torch.no_grad()
    def scores(self, images: ImageSequence) -> Tensor:
        token_cache = TokenCache(self.backbone, images, self.settings.first_layer)
        result = torch.full((len(images), len(self.classes)), -torch.inf).to(self.backbone.device)
        for index in batches(len(images)):
            tokens = token_cache[index]
            chosen = self.choose(tokens)
            for number in chosen.unique().tolist():
                rows = (chosen == number).nonzero()
                own = self.said(number, tokens[rows[:, 0]]).log_softmax(1)
                result[index.to(rows.device)[rows], self.owned(number)] = own
        return result
