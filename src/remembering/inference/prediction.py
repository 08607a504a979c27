"""What a model says: of its tasks, and of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from remembering.data.task import Label
from remembering.errors import RememberingError


@dataclass(frozen=True)
class TaskRecord:
    """What a model remembers of a task by name."""

    number: int
    name: str
    classes: tuple[Label, ...]
    images: int
    adapter: int
    """Gate: the adapter that answers for this task."""


@dataclass(frozen=True)
class Forgotten:
    """What was removed with a task."""

    task: TaskRecord
    shared_with: tuple[str, ...]
    """Tasks that need its adapter, which therefore stays; without any it was removed."""
    replay_images: int


@dataclass(frozen=True)
class Prediction:
    """Answers to n images."""

    labels: list[Label]
    probabilities: Tensor
    """(n, classes)."""
    classes: tuple[Label, ...]
    """Columns of `probabilities`."""
    tasks: list[str]
    """The task whose generative model knows the image best."""
    adapters: Tensor
    """(n,): number of the adapter that was asked."""
    errors: Tensor
    """(n, tasks): error under each task's generative model; the least is the most familiar."""
    novelty: Tensor | None = None
    """(n,): p-value that the image belongs to what was learned, if a rate was given."""
    unknown: Tensor | None = None
    """(n,): whether that p-value is at most the rate."""

    @property
    def confidence(self) -> Tensor:
        """Probability of each answer."""
        return self.probabilities.max(1).values


def choose(errors: Tensor, groups: Sequence[Any] | Tensor) -> Tensor:
    """The task of least mean error for each group, given back for each of its images."""
    keys = groups.tolist() if isinstance(groups, Tensor) else list(groups)
    if len(keys) != len(errors):
        raise RememberingError(f"{len(keys)} groups are given for {len(errors)} images")
    try:
        numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    except TypeError as error:
        raise RememberingError(f"groups must be names or numbers ({error})") from error
    group = torch.tensor([numbers[key] for key in keys])
    sums = errors.new_zeros(len(numbers), errors.shape[1]).index_add_(0, group, errors)
    return sums.argmin(1)[group]
