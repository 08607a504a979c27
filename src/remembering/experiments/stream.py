"""From the settings of a stream to its tasks."""

from __future__ import annotations

from pathlib import Path

from remembering.data.sources import load
from remembering.data.streams.permute import permute
from remembering.data.streams.sequence import sequence
from remembering.data.streams.split import split
from remembering.data.streams.stream import Stream, limit
from remembering.errors import RememberingError
from remembering.experiments.spec import Experiment


def make_stream(experiment: Experiment) -> Stream:
    """Return the tasks of an experiment."""
    settings, seed = experiment.stream, experiment.learning.seed
    data = Path(settings.data).expanduser() if settings.data else None
    sources = [
        limit(load(name.strip(), data), settings.per_class, settings.test_per_class, seed)
        for name in settings.source.split(",")
    ]
    if settings.kind == "sequence":
        return sequence(sources, seed)
    if len(sources) > 1:
        raise RememberingError(
            f'source = "{settings.source}" names several data sets; use kind = "sequence"'
        )
    if settings.kind == "permute":
        return permute(sources[0], settings.tasks, seed)
    return split(sources[0], settings.sizes or settings.tasks, seed)
