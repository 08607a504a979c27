"""Class-incremental streams: each task has some of the classes of one data set."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from remembering.data.sources.base import Source
from remembering.data.streams.stream import Stream, TaskData, as_task, distinct, shuffled
from remembering.data.task import Label
from remembering.errors import InvalidInputError
from remembering.runtime.seeding import permutation

CLASSES_IN_NAME = 3


def split(source: Source, tasks: int | Sequence[int], seed: int) -> Stream:
    """Assign the classes of a data set to tasks, in an order that depends on the seed.

    Args:
        source: The data set.
        tasks: The number of tasks, of sizes that differ by at most one class (the first are the
            larger ones), or the number of classes of each task. Remaining classes are left out.
        seed: Determines the order of the classes and of the test images.

    Raises:
        InvalidInputError: If the data set does not have enough classes.

    >>> from remembering.data.sources import load
    >>> [len(task.train.classes) for task in split(load("digits"), 4, seed=0).tasks]
    [3, 3, 2, 2]
    """
    sizes = _sizes(source, tasks)
    order = permutation(len(source.classes), seed, "split").tolist()
    groups = [sorted(order[sum(sizes[:i]) : sum(sizes[: i + 1])]) for i in range(len(sizes))]
    names = distinct(_name([source.classes[i] for i in group]) for group in groups)
    return Stream(
        f"{source.name}/{len(sizes)}",
        tuple(
            _task(source, name, group, seed, position)
            for position, (name, group) in enumerate(zip(names, groups, strict=True))
        ),
    )


def _task(source: Source, name: str, group: list[int], seed: int, position: int) -> TaskData:
    members = torch.tensor(group)
    train, test = (
        part.take(torch.isin(part.labels, members).nonzero().flatten())
        for part in (source.train, source.test)
    )
    test = shuffled(test, seed, "split test", position)
    return TaskData(as_task(name, train, source.classes), as_task(name, test, source.classes))


def _sizes(source: Source, tasks: int | Sequence[int]) -> list[int]:
    available = len(source.classes)
    if isinstance(tasks, int):
        if not 1 <= tasks <= available // 2:
            raise InvalidInputError(
                f"'{source.name}' has {available} classes and cannot be split into {tasks} tasks; "
                f"use 1 to {available // 2}, so that each task has at least two classes"
            )
        return [available // tasks + (i < available % tasks) for i in range(tasks)]
    sizes = list(tasks)
    if not sizes or min(sizes) < 2:
        raise InvalidInputError(
            f"the numbers of classes per task are {sizes}; each task needs at least two classes"
        )
    if sum(sizes) > available:
        raise InvalidInputError(
            f"the tasks need {sum(sizes)} classes but '{source.name}' has {available}; use fewer"
        )
    return sizes


def _name(classes: list[Label]) -> str:
    shown = ", ".join(str(label) for label in classes[:CLASSES_IN_NAME])
    more = len(classes) - CLASSES_IN_NAME
    return f"{shown} ... +{more}" if more > 0 else shown
