"""Domain streams: whole data sets, one after another."""

from __future__ import annotations

from collections.abc import Sequence

from remembering.data.sources.base import Source
from remembering.data.streams.stream import Stream, TaskData, as_task, distinct, shuffled


def sequence(sources: Sequence[Source], seed: int) -> Stream:
    """Create one task per data set; labels are kept and may recur in a later task.

    Args:
        sources: The data sets, in order.
        seed: Determines the order of the test images.
    """
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
