"""Class-incremental streams: the classes of one data set, a few per task."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from remembering.data.sources.base import Source
from remembering.data.streams.stream import Stream, TaskData, as_task, distinct, shuffled
from remembering.data.task import Label
from remembering.errors import RememberingError
from remembering.runtime.seeding import permutation

SHOWN = 3


def split(source: Source, tasks: int | Sequence[int], seed: int) -> Stream:
    """Deal the classes out to tasks, in an order resampled for each seed.

    Args:
        source: the data set.
        tasks: how many tasks, as equal as can be (the first ones get what is left over), or how
            many classes each task has. Classes that no task asks for are left out.
        seed: decides which classes come together and when, and the order of the test images.

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
    wanted = torch.tensor(group)
    train, test = (
        part.take(torch.isin(part.labels, wanted).nonzero().flatten())
        for part in (source.train, source.test)
    )
    test = shuffled(test, seed, "split test", position)
    return TaskData(
        as_task(name, train, source.classes),
        as_task(name, test, source.classes),
    )


def _sizes(source: Source, tasks: int | Sequence[int]) -> list[int]:
    available = len(source.classes)
    if isinstance(tasks, int):
        if not 1 <= tasks <= available // 2:
            raise RememberingError(
                f"'{source.name}' has {available} classes and cannot be split into {tasks} tasks; "
                f"give 1 to {available // 2}, so that each task has at least two classes"
            )
        return [available // tasks + (i < available % tasks) for i in range(tasks)]
    sizes = list(tasks)
    if not sizes or min(sizes) < 2:
        raise RememberingError(
            f"the numbers of classes per task are {sizes}; "
            "give each task at least two classes to tell apart"
        )
    if sum(sizes) > available:
        raise RememberingError(
            f"the tasks ask for {sum(sizes)} classes but '{source.name}' has {available}; "
            "ask for fewer"
        )
    return sizes


def _name(classes: list[Label]) -> str:
    shown = ", ".join(str(label) for label in classes[:SHOWN])
    return f"{shown} ... +{len(classes) - SHOWN}" if len(classes) > SHOWN else shown
