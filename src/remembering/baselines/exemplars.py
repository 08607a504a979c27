"""A bounded memory of training images, shared by the methods that replay or imitate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from remembering.baselines.base import Baseline
from remembering.data.images import ImageSequence, joined
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.learning.replay import herd, kept_images

PER_CLASS = 20
"""Images that a comparison lets a method keep for each class of each task, in one memory for all:
2,000 for CIFAR-100, as in iCaRL, and 200 for CIFAR-10, the smallest buffer of DER++."""

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""Features, targets and a number of images to the positions of those kept, best first in a class;
`memory.herd` is one."""


class Exemplars:
    """At most `budget` images in all, shared out evenly over the classes of every task so far.

    They lie in the method's own `tensors` (`exemplars.<task>.images` and `.targets`), so they are
    saved, loaded and counted with it. A class that comes back in a later task has a share in both.
    """

    def __init__(self, learner: Baseline, budget: int):
        if budget < 1:
            raise RememberingError(f"a memory of {budget} images is none; give at least 1")
        self.learner = learner
        self.budget = budget

    def __len__(self) -> int:
        return sum(len(self._targets(number)) for number in self.tasks)

    @property
    def images(self) -> ImageSequence:
        """All that are kept, task after task."""
        return joined([self.learner.tensors[f"exemplars.{n}.images"].cpu() for n in self.tasks])

    @property
    def targets(self) -> Tensor:
        """The position in the method's `classes` of each."""
        return torch.cat([self._targets(number) for number in self.tasks])

    def add(self, task: Task, features: Tensor, choose: Choose = herd) -> None:
        """Make room, and keep of this task those that `choose` takes by their features."""
        tensors, number = self.learner.tensors, self.learner.learned
        classes = {n: int(self._targets(n).unique().numel()) for n in self.tasks}
        share = self.budget // (sum(classes.values()) + len(task.classes))
        for old in self.tasks:
            targets = self._targets(old)
            # Best first within a class, so the first `share` of each stay.
            rank = torch.stack([(targets[: i + 1] == t).sum() for i, t in enumerate(targets)])
            stay = rank <= share
            for name in (f"exemplars.{old}.images", f"exemplars.{old}.targets"):
                tensors[name] = tensors[name][stay.to(tensors[name].device)]
        if share:
            chosen = choose(features, task.targets, share * len(task.classes))
            labels = [task.labels[i] for i in chosen.tolist()]
            kept = kept_images(self.learner.backbone, task.images, chosen)
            tensors[f"exemplars.{number}.images"] = kept
            tensors[f"exemplars.{number}.targets"] = self.learner.targets(labels)

    @property
    def tasks(self) -> list[int]:
        """Numbers of those that have images here."""
        names = [name.split(".") for name in self.learner.tensors]
        return sorted(int(n[1]) for n in names if n[0] == "exemplars" and n[2] == "targets")

    def _targets(self, number: int) -> Tensor:
        return self.learner.tensors[f"exemplars.{number}.targets"].cpu()
