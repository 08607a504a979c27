"""Progress of a job: share done, time left, and cancellation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from remembering.runtime.progress import Progress, Step
from remembering.state import ModelState

_MIN_SHARE = 0.02  # no estimate of the time left before this share is done


class CancelledJob(Exception):  # noqa: N818 (not an error)
    """The client cancelled the job."""


class StoppedServer(Exception):  # noqa: N818 (not an error)
    """The server is stopping; the job is resumed by the next one."""


Report = Callable[[float, str, float | None], None]


class JobProgress(Progress):
    """Reports share, message and seconds left of a job; raises if it must end.

    Args:
        expected: Expected number of images of all pieces of work.
        report: Called with the share done, what is being done, and the seconds left.
        check: Called before each step; raises to end the job.
    """

    def __init__(self, expected: int, report: Report, check: Callable[[], None]):
        self._expected, self._report, self._check = expected, report, check
        self._done = 0
        self._started = time.monotonic()

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Step]:
        """Report a piece of work of `total` images."""
        before = self._done
        self._advance(description)

        def step(advance: int, note: str = "") -> None:
            self._done += advance
            self._advance(f"{description} ({note})" if note else description)

        yield step
        self._done = before + total  # a resumed piece of work reports only what it still did
        self._advance(description)

    def _advance(self, message: str) -> None:
        self._check()
        share = min(self._done / max(self._expected, self._done, 1), 0.99)
        elapsed = time.monotonic() - self._started
        left = elapsed * (1 - share) / share if share >= _MIN_SHARE else None
        self._report(share, message, left)


def expected_images(state: ModelState, images: int) -> int:
    """Return how many images learning a task of so many images passes through, in all epochs."""
    return (3 + state.settings.epochs_for(images)) * images if images else 0
