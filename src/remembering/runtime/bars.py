"""Progress bars on a terminal or in a notebook, and one line with an estimate elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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

from remembering.runtime.progress import Progress, Step
from remembering.runtime.text import duration, printable

ESTIMATE_AFTER, ESTIMATE_STEPS = 5.0, 3
"""Seconds and steps from which the remaining time is estimated where no bar is shown."""
ESTIMATE_FROM = 20.0
"""Shorter remaining times, in seconds, are not reported there."""
REFRESH = 0.2
"""Seconds between two updates of a bar in a notebook."""


class _Rate(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.0f} images/s" if speed and speed >= 1 else "")


class _TimeLeft(TimeRemainingColumn):
    """Remaining time at the current speed, unless the note already contains an estimate."""

    def render(self, task: Task) -> Text:
        return Text() if task.fields["note"].endswith("left") else super().render(task)


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        _TimeLeft(),
        TextColumn("{task.fields[note]}", markup=False),
    )


class ProgressBars(Progress):
    """Bars on standard error if it is a terminal, or below the cell of a notebook.

    Nested work has nested bars. Where there are no bars, such as in a log file, long work reports
    its remaining time once, measured from its first steps.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars: RichProgress | None = None
        self._refresh: Callable[[], None] = lambda: None
        self._display: Any = None  # what IPython shows, reused for one bar after another
        self._depth = 0

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Step]:
        """Show a bar while the work is done."""
        if total == 0:
            yield lambda advance, note="": None
        elif self._bars is not None:
            yield from self._bar(self._bars, description, total)
        elif self._console.is_jupyter:
            yield from self._in_notebook(description, total)
        elif sys.stderr.isatty():
            yield from self._on_terminal(description, total)
        else:
            self._depth += 1
            try:
                yield self._estimating(description, total)
            finally:
                self._depth -= 1

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(Text(printable(line)), soft_wrap=True)

    def _on_terminal(self, description: str, total: int) -> Iterator[Step]:
        with RichProgress(
            *_columns(),
            console=self._console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # else what is piped would go to the terminal
        ) as self._bars:
            try:
                yield from self._bar(self._bars, description, total)
            finally:
                self._bars = None

    def _in_notebook(self, description: str, total: int) -> Iterator[Step]:
        """Show bars without ipywidgets, which rich's own support for notebooks needs."""
        from IPython.display import display

        self._bars = bars = RichProgress(*_columns(), console=self._console, auto_refresh=False)
        shown_at = 0.0

        def refresh() -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at >= REFRESH or bars.finished:
                shown_at = time.monotonic()
                self._display.update(bars)

        try:
            if self._display is None:
                self._display = display(bars, display_id=True)
            self._refresh = refresh
            yield from self._bar(bars, description, total)
        finally:
            self._bars, self._refresh = None, lambda: None

    def _bar(self, bars: RichProgress, description: str, total: int) -> Iterator[Step]:
        bar = bars.add_task(printable(description), total=total, note="")

        def step(advance: int, note: str = "") -> None:
            bars.update(bar, advance=advance, note=printable(note))
            self._refresh()

        yield step
        bars.remove_task(bar)

    def _estimating(self, description: str, total: int) -> Step:
        """Return a step that reports the remaining time of the outermost work once."""
        silent, first, started, done, steps = self._depth > 1, 0, 0.0, 0, 0

        def step(advance: int, note: str = "") -> None:
            nonlocal silent, first, started, done, steps
            if steps == 0:  # includes preparations: not measured
                first, started = advance, time.monotonic()
            else:
                done += advance
            steps += 1
            elapsed = time.monotonic() - started
            if silent or not done or steps <= ESTIMATE_STEPS or elapsed < ESTIMATE_AFTER:
                return
            silent = True
            left = elapsed * (total - first - done) / done
            if left >= ESTIMATE_FROM and not note.endswith("left"):
                self.say(f"{description}: about {duration(left)} left")

        return step
