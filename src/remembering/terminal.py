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
    """Images per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.0f} images/s" if speed else "")


class TerminalProgress(Progress):
    """Bars on a terminal; nothing where output goes to a file or a pipe."""

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Step]:
        """A bar that disappears when its work is done."""
        console = Console(stderr=True)
        if not sys.stderr.isatty() or total == 0:
            yield lambda advance, note="": None
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with RichProgress(*columns, console=console, transient=True) as bars:
            bar = bars.add_task(description, total=total, note="")

            def step(advance: int, note: str = "") -> None:
                bars.update(bar, advance=advance, note=note)

            yield step


def show(table: Table) -> None:
    """Print a table, as wide as it needs where output goes to a file or a pipe."""
    wide = None if sys.stdout.isatty() else 160
    Console(width=wide).print(table.to_rich())
