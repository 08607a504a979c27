"""Domain streams: whole data sets, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remembering.data.sources.base import Source
from remembering.data.streams.stream import Stream, TaskData, as_task, distinct, shuffled


def sequence(sources: Sequence[Source], seed: int) -> Stream:
    """Create one task per data set; labels may recur in a later task.

    Labels are kept, as text if some data sets have names and others have numbers.

    Args:
        sources: The data sets, in order.
        seed: Determines the order of the test images.
    """
    if len({type(label) for source in sources for label in source.classes}) > 1:
        sources = [replace(source, classes=tuple(map(str, source.classes))) for source in sources]
    names = distinct(source.name for source in sources)
    return Stream(
        ", ".join(names),
        tuple(
            TaskData(
                as_task(name, source.train, source.classes),
                as_task(name, shuffled(source.test, seed, "sequence", i), source.classes),
            )
            for i, (name, source) in enumerate(zip(names, sources, strict=True))
        ),
    )
