"""The contract of every rival: learn a task, predict images, say what is kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from remembering.adapters import Adapter
from remembering.backbone import Backbone
from remembering.config import Settings
from remembering.encoding import Prefix, batches
from remembering.evaluation.footprint import Footprint
from remembering.heads import Head
from remembering.images import ImageSequence
from remembering.progress import SILENT, Progress
from remembering.seeding import generator
from remembering.tasks.task import Label, Task
from remembering.training import logits


class Baseline(ABC):
    """A continual learner on the same frozen backbone, with the same settings.

    To add one, subclass this in a file of its own and name it in `remembering.baselines.BASELINES`;
    `tests/baselines/test_baselines.py` then runs on it.
    """

    every_task = True
    """Whether it is worth asking after each task, or only after the last."""

    def __init__(self, backbone: Backbone, settings: Settings):
        self.backbone = backbone
        self.settings = settings

    @abstractmethod
    def learn(self, task: Task, progress: Progress = SILENT) -> None:
        """Learn the next task."""

    @abstractmethod
    def predict(self, images: ImageSequence) -> list[Label]:
        """Answer images, each alone, without their task."""

    @abstractmethod
    def footprint(self) -> Footprint:
        """What is kept beside the frozen backbone."""


class SingleAdapter(Baseline):
    """What methods share that have one adapter and one head over all classes seen."""

    def __init__(self, backbone: Backbone, settings: Settings):
        super().__init__(backbone, settings)
        self.start_anew()

    def start_anew(self) -> None:
        """Know nothing."""
        settings = self.settings
        rng = generator(settings.seed, "baseline")
        self.adapter = Adapter.new(self.backbone, settings.rank, settings.first_layer, rng)
        self.head = Head.linear((), self.backbone)

    def predict(self, images: ImageSequence) -> list[Label]:
        prefix = Prefix(self.backbone, images, self.settings.first_layer)
        answers: list[Label] = []
        with torch.inference_mode():
            for index in batches(len(images)):
                outputs = logits(self.backbone, self.adapter, self.head, prefix[index])
                answers += [self.head.classes[i] for i in outputs.argmax(1).tolist()]
        return answers

    def footprint(self) -> Footprint:
        return Footprint(self.adapter.parameters, self.head.parameters, 0, 0)


def accuracy(answers: Sequence[Label], labels: Sequence[Label]) -> float:
    """Share of right answers."""
    return sum(a == b for a, b in zip(answers, labels, strict=True)) / len(labels)
