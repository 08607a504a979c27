"""What the command draws: progress bars with rates and time left, and tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.text import Text

from remembering.progress import Progress, Step

if TYPE_CHECKING:
    from remembering.report.tables import Table


class _Rate(ProgressColumn):
    """Images per second, where images are counted."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.0f} images/s" if speed and speed >= 1 else "")


class TerminalProgress(Progress):
    """Bars on a terminal; nothing where output goes to a file or a pipe.

    Work within work gets a bar below the bar of what it is part of.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars: RichProgress | None = None

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Step]:
        """A bar that disappears when its work is done."""
        if not sys.stderr.isatty() or total == 0:
            yield lambda advance, note="": None
            return
        if self._bars is not None:
            yield from self._bar(self._bars, description, total)
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with RichProgress(*columns, console=self._console, transient=True) as self._bars:
            try:
                yield from self._bar(self._bars, description, total)
            finally:
                self._bars = None

    def say(self, line: str) -> None:
        """Above the bars, on the stream that they are drawn on."""
        self._console.print(Text(line), soft_wrap=True)

    def _bar(self, bars: RichProgress, description: str, total: int) -> Iterator[Step]:
        bar = bars.add_task(description, total=total, note="")

        def step(advance: int, note: str = "") -> None:
            bars.update(bar, advance=advance, note=note)

        yield step
        bars.remove_task(bar)


def show(table: Table) -> None:
    """Print a table, as wide as it needs where output goes to a file or a pipe."""
    wide = None if sys.stdout.isatty() else 160
    Console(width=wide).print(table.to_rich())
