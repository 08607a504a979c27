"""Forward losses and accuracies to one of accelerate's trackers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from remembering.errors import RememberingError
from remembering.runtime.progress import Progress, Step


def check_tracker(name: str) -> None:
    """Check that accelerate supports a tracker and that its package is installed.

    Raises:
        RememberingError: If it does not, or it is not.
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    known = sorted(LOGGER_TYPE_TO_CLASS)
    if name not in known:
        raise RememberingError(f"there is no tracker '{name}'; accelerate has {', '.join(known)}")
    if name not in [str(tracker) for tracker in get_available_trackers()]:
        package = name.replace("_", "-")
        raise RememberingError(
            f"the tracker '{name}' is not installed; install it with: pip install {package}"
        )


@contextmanager
def tracked(
    progress: Progress, name: str, folder: Path, title: str, config: Mapping[str, Any]
) -> Iterator[Progress]:
    """Yield progress that also forwards measurements to a tracker.

    Args:
        progress: Where progress is shown.
        name: Name of the tracker, such as "tensorboard".
        folder: Where the tracker may write files.
        title: Name of the experiment or project.
        config: Every setting.
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    kind = LOGGER_TYPE_TO_CLASS[name]
    if kind.requires_logging_directory:
        folder.mkdir(parents=True, exist_ok=True)
        tracker = kind(title, str(folder))
    else:
        tracker = kind(title)
    tracker.start()
    try:
        tracker.store_init_configuration(dict(_flat(config)))
        yield _Tracked(progress, tracker)
    finally:
        tracker.finish()


class _Tracked(Progress):
    def __init__(self, shown: Progress, tracker: Any):
        self._shown = shown
        self._tracker = tracker

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Step]:
        with self._shown.track(description, total) as step:
            yield step

    def say(self, line: str) -> None:
        self._shown.say(line)

    def log(self, values: Mapping[str, float], step: int) -> None:
        # MLflow rejects other characters, and names of tasks may contain any.
        named = {re.sub(r"[^\w\-. /]", "_", key): value for key, value in values.items()}
        if self._tracker.name == "wandb":  # its own step counter must not decrease
            self._tracker.log({**named, "step": step})
        else:
            self._tracker.log(named, step=step)


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested settings to dotted names; lists become text, because trackers reject them."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            plain = isinstance(value, bool | int | float | str)
            yield f"{before}{key}", value if plain else str(value)
