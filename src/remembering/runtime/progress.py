"""How far along: told by the library, shown by whoever listens (the command draws bars)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol


class Step(Protocol):
    """One piece of work under way."""

    def __call__(self, advance: int, note: str = "") -> None: ...


class Progress:
    """Says nothing. Subclasses show each piece of work while its `track` is open."""

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Step]:
        """A piece of work of `total` images."""
        yield lambda advance, note="": None

    def say(self, line: str) -> None:
        """A line that stays, such as a result on the way."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Measurements by name after so many steps, or tasks."""


SILENT = Progress()
