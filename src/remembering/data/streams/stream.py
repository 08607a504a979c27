"""The contract of task streams, and helpers that several kinds of stream share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from remembering.data.sources.base import LabelledImages, Source
from remembering.data.task import Label, Task
from remembering.errors import InvalidInputError
from remembering.runtime.seeding import permutation


@dataclass(frozen=True, eq=False)
class TaskData:
    """Training and test images of one task; every class of the test images is trained."""

    train: Task
    test: Task

    def __post_init__(self) -> None:
        self.train.check_learnable()
        unknown = set(self.test.classes) - set(self.train.classes)
        if unknown:
            raise InvalidInputError(
                f"task '{self.train.name}' is tested on class '{min(map(str, unknown))}', which "
                "has no training images; add some or leave the class out of the test"
            )


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in the order in which they are learned; their names are unique."""

    name: str
    tasks: tuple[TaskData, ...]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InvalidInputError(f"stream '{self.name}' has no tasks; add at least one")
        names = [task.train.name for task in self.tasks]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidInputError(
                f"stream '{self.name}' has two tasks named '{twice}'; use unique names"
            )


def shuffled(data: LabelledImages, seed: int, *purpose: str | int) -> LabelledImages:
    """Shuffle images, so that consecutive ones differ in class even if files are sorted."""
    return data.take(permutation(len(data), seed, *purpose))


def as_task(name: str, data: LabelledImages, classes: tuple[Label, ...]) -> Task:
    """Create a task, with positions replaced by the labels in `classes`."""
    return Task(name, data.images, [classes[i] for i in data.labels.tolist()])


def distinct(names: Iterable[str]) -> list[str]:
    """Append a number to every name that occurred before."""
    result: list[str] = []
    for name in names:
        number, candidate = 2, name
        while candidate in result:
            number, candidate = number + 1, f"{name} ({number})"
        result.append(candidate)
    return result


def limit(source: Source, per_class: int | None, test_per_class: int | None, seed: int) -> Source:
    """Limit the number of images per class.

    The images of a smaller limit are a subset of those of a larger one, and do not depend on how
    a stream orders the classes.

    Args:
        source: The data set.
        per_class: Largest number of training images per class. If None, all are kept.
        test_per_class: The same for test images.
        seed: Determines which images are kept.

    Raises:
        InvalidInputError: If a limit is less than 1.
    """
    return Source(
        source.name,
        _limit(source.train, len(source.classes), per_class, seed, "train"),
        _limit(source.test, len(source.classes), test_per_class, seed, "test"),
        source.classes,
    )


def hold_out(source: Source, per_class: int, seed: int) -> Source:
    """Replace the test images by training images, which are then not learned.

    Args:
        source: The data set.
        per_class: Number of training images of each class that are held out.
        seed: Determines which.

    Raises:
        InvalidInputError: If a class has no other training images.
    """
    learned, tested = [], []
    for label, name in enumerate(source.classes):
        members = (source.train.labels == label).nonzero().flatten()
        if not 1 <= per_class < len(members):
            raise InvalidInputError(
                f"{per_class} of the {len(members)} training images of class '{name}' of "
                f"'{source.name}' cannot be held out; at least one must be, and one left"
            )
        order = permutation(len(members), seed, "held out", label)
        tested.append(members[order[:per_class]])
        learned.append(members[order[per_class:]])
    train, test = (source.train.take(torch.cat(part).sort().values) for part in (learned, tested))
    return Source(source.name, train, test, source.classes)


def _limit(
    data: LabelledImages, classes: int, per_class: int | None, seed: int, part: str
) -> LabelledImages:
    if per_class is None:
        return data
    if per_class < 1:
        raise InvalidInputError(
            f"the limit of {part} images per class is {per_class}; it must be at least 1"
        )
    kept: list[Tensor] = []
    for label in range(classes):
        members = (data.labels == label).nonzero().flatten()
        order = permutation(len(members), seed, "limit", part, label)
        kept.append(members[order[:per_class]])
    # In the order of the source, so that a limit that removes nothing changes nothing.
    return data.take(torch.cat(kept).sort().values)
