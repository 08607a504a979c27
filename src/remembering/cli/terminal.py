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
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from remembering.runtime.progress import Progress, Step

if TYPE_CHECKING:
    from remembering.report.tables import Table


class _Rate(ProgressColumn):
    """Images per second, where images are counted."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.0f} images/s" if speed and speed >= 1 else "")


class _TimeLeft(TimeRemainingColumn):
    """An estimate from the speed so far, unless the work has one of its own in its note."""

    def render(self, task: Task) -> Text:
        return Text() if task.fields["note"].endswith("left") else super().render(task)


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
            _TimeLeft(),
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
    """Print a table: 160 wide where output goes to a file or a pipe, and on a terminal as many
    columns as it has room for."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    fitting = len(table.headers)
    while fitting > 2 and _width(console, table.to_rich(fitting)) > console.width:
        fitting -= 1
    console.print(table.to_rich(fitting))
    if fitting < len(table.headers):
        missing = ", ".join(table.headers[fitting:])
        console.print(Text(f"No room here for: {missing}; remember report shows them."))


def _width(console: Console, table: RichTable) -> int:
    """Of its longest line, as it would be drawn if nothing were cut off."""
    return max(map(Segment.get_line_length, Segment.split_lines(console.render(table))))
