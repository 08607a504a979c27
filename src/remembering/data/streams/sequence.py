"""Streams of whole data sets, one after another."""

from __future__ import annotations

from collections.abc import Sequence

from remembering.data.sources.base import Source
from remembering.data.streams.stream import Stream, TaskData, as_task, distinct, shuffled


def sequence(sources: Sequence[Source], seed: int) -> Stream:
    """One task per data set, in the order given; the seed mixes the test images.

    Labels stay as they are, and may come back in a later task.
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
