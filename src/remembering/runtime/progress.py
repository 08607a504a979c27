"""Progress reports of long operations; `runtime.bars` draws bars from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol


class Step(Protocol):
    """Reports that some images are done."""

    def __call__(self, advance: int, note: str = "") -> None: ...


class Progress:
    """Discards all reports. Subclasses show them."""

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Step]:
        """Report an operation on `total` images; call what it yields after each batch."""
        yield lambda advance, note="": None

    def say(self, line: str) -> None:
        """Show a line permanently, such as an intermediate result."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record measurements by name after a number of steps or tasks."""


SILENT = Progress()


def as_progress(progress: Progress | bool) -> Progress:
    """Return bars for True, nothing for False, and a `Progress` as it is."""
    if isinstance(progress, Progress):
        return progress
    if not progress:
        return SILENT
    from remembering.runtime.bars import ProgressBars  # rich is not needed otherwise

    return ProgressBars()
