"""Where results come from: the command, the data, and the environment."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from remembering import __version__
from remembering.data.streams.stream import Stream
from remembering.experiments.spec import Experiment
from remembering.inference.token_cache import batches
from remembering.runtime.distributed import current

_ONE_VALUE = ("--seeds", "--seed", "--methods", "--out", "--save-steps", "--tracker")
_MANY_VALUES = ("--options",)
_FLAGS = ("--resume",)


def data_sha256(stream: Stream) -> str:
    """Return the SHA-256 of every image and label, in the order of the stream."""
    digest = hashlib.sha256()
    for data in stream.tasks:
        for task in (data.train, data.test):
            digest.update(json.dumps(task.labels).encode())
            for index in batches(len(task)):
                for image in task.images[index]:
                    digest.update(image.contiguous().numpy().tobytes())
    return digest.hexdigest()


def environment() -> dict[str, str | int]:
    """Return what results depend on besides settings and data."""
    return {
        "remembering": __version__,
        **({"commit": found} if (found := commit(Path(__file__))) else {}),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "threads": torch.get_num_threads(),
        **current().about(),
        "machine": platform.machine(),
    }


@cache  # the code of this process does not change
def commit(path: Path) -> str | None:
    """Return the git commit of the package that contains a module, or None if there is none.

    "+changes" is appended if files of the package differ from the commit.
    """
    package = path.resolve().parents[1]

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(package), *words], capture_output=True, text=True, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", str(path.resolve())) is None:
        return None  # not installed from a clone; the folder may belong to another repository
    found = git("rev-parse", "HEAD")
    return f"{found}+changes" if found and git("status", "--porcelain", "--", ".") else found


def command_words(command: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command that results record.

    Seeds, methods and their options are left out, because a report adds those that it shows.
    Folders and resumption are left out, because they do not change results.

    >>> command_words("run", ["digits-5", "--seeds", "0,1", "--rank", "8", "--out", "x"])
    ('run', 'digits-5', '--rank', '8')
    """
    words, rest = [command], list(arguments)
    while rest:
        word = rest.pop(0)
        option, assigned, value = word.partition("=")
        option = option.replace("_", "-") if option.startswith("--") else option
        if option in _FLAGS:
            continue
        if option in (*_ONE_VALUE, *_MANY_VALUES):
            most = 0 if assigned else 1 if option in _ONE_VALUE else len(rest)
            while rest and most and not rest[0].startswith("-"):
                most -= 1
                rest.pop(0)
            continue
        words.append(f"{option}={portable(value)}" if assigned else portable(word))
    return tuple(words)


def portable(text: str) -> str:
    """Return a word without the location of this machine's folders.

    >>> portable("/home/me/models/vit-tiny"), portable("google/vit-base")
    ('PATH/vit-tiny', 'google/vit-base')
    """
    path = Path(text).expanduser()
    return f"PATH/{path.name}" if path.is_absolute() or ".." in path.parts else text


def portable_settings(experiment: Experiment) -> Experiment:
    """Return settings without the location of this machine's folders."""
    stream = experiment.stream
    sources = ",".join(portable(name.strip()) for name in stream.source.split(","))
    data = None if stream.data is None else portable(stream.data)
    return replace(
        experiment,
        backbone=portable(experiment.backbone),
        stream=replace(stream, source=sources, data=data),
    )
