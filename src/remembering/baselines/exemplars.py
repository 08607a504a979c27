"""A bounded replay memory of training images, shared by methods that store exemplars."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.baselines.base import Baseline
from remembering.data.images import ImageSequence, joined
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.token_cache import TokenCache
from remembering.learning.replay import herd, kept_images
from remembering.learning.training import TrainingSet

PER_CLASS = 20
"""Images per class of each task that a method may store in a comparison, in one memory for all:
2,000 for CIFAR-100, as in iCaRL, and 200 for CIFAR-10, the smallest buffer of DER++."""

Select = Callable[[Tensor, Tensor, int], Tensor]
"""Map features, targets and a number of images to the positions of the images to store, the best
first within a class; for example `learning.replay.herd`."""


class Exemplars:
    """At most `budget` images, divided evenly among the classes of all tasks so far.

    The images are stored in the method's `tensors` (`exemplars.<task>.images` and `.targets`), so
    they are saved, loaded and counted with it. A class that reappears in a later task has a share
    in both tasks.
    """

    def __init__(self, learner: Baseline, budget: int):
        if budget < 1:
            raise RememberingError(
                f"a memory of {budget} images cannot store anything; set memory to at least 1"
            )
        self.learner = learner
        self.budget = budget

    def __len__(self) -> int:
        return sum(len(self._targets(number)) for number in self.tasks)

    @property
    def images(self) -> ImageSequence:
        """All stored images, in task order."""
        return joined([self.learner.tensors[f"exemplars.{n}.images"].cpu() for n in self.tasks])

    @property
    def targets(self) -> Tensor:
        """The position of each image's class in the method's `classes`."""
        return torch.cat([self._targets(number) for number in self.tasks])

    def add(self, task: Task, features: Tensor, select: Select = herd) -> None:
        """Reduce the shares of old tasks and store the images of a task that `select` returns."""
        tensors, number = self.learner.tensors, self.learner.learned
        classes = {n: int(self._targets(n).unique().numel()) for n in self.tasks}
        share = self.budget // (sum(classes.values()) + len(task.classes))
        for old in self.tasks:
            targets = self._targets(old)
            # Images are ordered best first within a class: keep the first `share` of each.
            rank = torch.stack([(targets[: i + 1] == t).sum() for i, t in enumerate(targets)])
            keep = rank <= share
            for name in (f"exemplars.{old}.images", f"exemplars.{old}.targets"):
                tensors[name] = tensors[name][keep.to(tensors[name].device)]
        if share:
            chosen = select(features, task.targets, share * len(task.classes))
            labels = [task.labels[i] for i in chosen.tolist()]
            images = kept_images(self.learner.backbone, task.images, chosen)
            tensors[f"exemplars.{number}.images"] = images
            tensors[f"exemplars.{number}.targets"] = self.learner.targets(labels)

    @property
    def tasks(self) -> list[int]:
        """Numbers of the tasks that have stored images."""
        names = [name.split(".") for name in self.learner.tensors]
        return sorted(int(n[1]) for n in names if n[0] == "exemplars" and n[2] == "targets")

    def _targets(self, number: int) -> Tensor:
        return self.learner.tensors[f"exemplars.{number}.targets"].cpu()


def with_memory(
    learner: Baseline, task: Task, head: Head, images: ImageSequence, targets: Tensor
) -> TrainingSet:
    """Return a training set of a task's images followed by stored images.

    `targets` are those of the stored images, or empty if the method samples these images itself.
    """
    everything = joined([task.images, images])
    token_cache = TokenCache(learner.backbone, everything, learner.settings.first_layer).filled()
    targets = torch.cat([head.targets(task.labels), targets])
    return TrainingSet(token_cache, targets, f"{task.name} ({learner.title})", learner.learned)
