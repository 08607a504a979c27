"""Tables and progress bars on the terminal."""

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
from remembering.runtime.text import printable

if TYPE_CHECKING:
    from remembering.report.table import Table


class _Rate(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.0f} images/s" if speed and speed >= 1 else "")


class _TimeLeft(TimeRemainingColumn):
    """Remaining time at the current speed, unless the note already contains an estimate."""

    def render(self, task: Task) -> Text:
        return Text() if task.fields["note"].endswith("left") else super().render(task)


class TerminalProgress(Progress):
    """Progress bars on standard error, if it is a terminal. Nested work has nested bars."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars: RichProgress | None = None

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Step]:
        """Show a bar that disappears when the work is done."""
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
        with RichProgress(
            *columns,
            console=self._console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # else what is piped would go to the terminal
        ) as self._bars:
            try:
                yield from self._bar(self._bars, description, total)
            finally:
                self._bars = None

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(Text(printable(line)), soft_wrap=True)

    def _bar(self, bars: RichProgress, description: str, total: int) -> Iterator[Step]:
        bar = bars.add_task(printable(description), total=total, note="")

        def step(advance: int, note: str = "") -> None:
            bars.update(bar, advance=advance, note=printable(note))

        yield step
        bars.remove_task(bar)


def stdout_console() -> Console:
    """Return a console for standard output, 160 columns wide if that is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 160)


def cell(text: object) -> Text:
    """Return a cell of a table: no markup, control characters escaped."""
    return Text(printable(text))


def show(table: Table, elsewhere: str = "remember report") -> None:
    """Print a table with as many columns as there is room for, and which command shows the rest."""
    console = stdout_console()
    fitting = len(table.headers)
    while fitting > 2 and _width(console, table.to_rich(fitting)) > console.width:
        fitting -= 1
    console.print(table.to_rich(fitting))
    if fitting < len(table.headers):
        missing = ", ".join(table.headers[fitting:])
        console.print(Text(f"The terminal is too narrow for: {missing}; {elsewhere} shows them."))


def _width(console: Console, table: RichTable) -> int:
    """Return the width of the longest line of a table that is not truncated."""
    return max(map(Segment.get_line_length, Segment.split_lines(console.render(table))))
