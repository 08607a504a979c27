"""From the settings of a stream to its tasks."""

from __future__ import annotations

from pathlib import Path

from remembering.data.sources import load
from remembering.data.streams.permute import permute
from remembering.data.streams.sequence import sequence
from remembering.data.streams.split import split
from remembering.data.streams.stream import Stream, hold_out, limit
from remembering.errors import RememberingError
from remembering.experiments.spec import Experiment


def make_stream(experiment: Experiment, held_out: int = 0) -> Stream:
    """Return the tasks of an experiment.

    Args:
        experiment: Its settings.
        held_out: If above 0, this many training images per class replace the test images, to
            select hyperparameters.
    """
    settings, seed = experiment.stream, experiment.learning.seed
    data = Path(settings.data).expanduser() if settings.data else None
    sources = [load(name.strip(), data) for name in settings.source.split(",")]
    if held_out:
        sources = [hold_out(source, held_out, seed) for source in sources]
    tested = held_out or settings.test_per_class
    sources = [limit(source, settings.per_class, tested, seed) for source in sources]
    if settings.kind == "sequence":
        return sequence(sources, seed)
    if len(sources) > 1:
        raise RememberingError(
            f'source = "{settings.source}" names several data sets; use kind = "sequence"'
        )
    if settings.kind == "permute":
        return permute(sources[0], settings.tasks, seed)
    return split(sources[0], settings.sizes or settings.tasks, seed)
