"""A stream: the tasks that come one after another, each with images to be tested on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from remembering.data.sources.base import LabelledImages, Source
from remembering.data.task import Label, Task
from remembering.errors import RememberingError
from remembering.runtime.seeding import permutation


@dataclass(frozen=True, eq=False)
class TaskData:
    """What a task is learned from and what it is tested on."""

    train: Task
    test: Task

    def __post_init__(self) -> None:
        self.train.check_learnable()
        unknown = set(self.test.classes) - set(self.train.classes)
        if unknown:
            raise RememberingError(
                f"task '{self.train.name}' is tested on class '{min(map(str, unknown))}' but has "
                "no image of it to learn from; add some or leave it out of the test"
            )


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in the order in which they are learned; their names are unique."""

    name: str
    tasks: tuple[TaskData, ...]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise RememberingError(f"stream '{self.name}' has no tasks; give it at least one")
        names = [task.train.name for task in self.tasks]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise RememberingError(
                f"stream '{self.name}' has two tasks named '{twice}'; give each its own name"
            )


def shuffled(data: LabelledImages, seed: int, *purpose: str | int) -> LabelledImages:
    """Mixed, so that consecutive images are of different classes where files come sorted."""
    return data.take(permutation(len(data), seed, *purpose))


def as_task(name: str, data: LabelledImages, classes: tuple[Label, ...]) -> Task:
    """A task with the labels of `classes` in place of their positions."""
    return Task(name, data.images, [classes[i] for i in data.labels.tolist()])


def distinct(names: Iterable[str]) -> list[str]:
    """The names, with a number added to one that was there before."""
    result: list[str] = []
    for name in names:
        number, candidate = 2, name
        while candidate in result:
            number, candidate = number + 1, f"{name} ({number})"
        result.append(candidate)
    return result


def limit(source: Source, per_class: int | None, test_per_class: int | None, seed: int) -> Source:
    """At most so many images of each class; None keeps all.

    A smaller limit takes a part of what a larger one takes, and which images are taken does not
    depend on how a stream orders the classes.
    """
    return Source(
        source.name,
        _limit(source.train, len(source.classes), per_class, seed, "train"),
        _limit(source.test, len(source.classes), test_per_class, seed, "test"),
        source.classes,
    )


def _limit(
    data: LabelledImages, classes: int, per_class: int | None, seed: int, part: str
) -> LabelledImages:
    if per_class is None:
        return data
    if per_class < 1:
        raise RememberingError(
            f"the limit of {part} images per class is {per_class}; give 1 or more"
        )
    kept: list[Tensor] = []
    for label in range(classes):
        members = (data.labels == label).nonzero().flatten()
        order = permutation(len(members), seed, "limit", part, label)
        kept.append(members[order[:per_class]])
    # In the order of the source, so that a limit that cuts nothing changes nothing.
    return data.take(torch.cat(kept).sort().values)
