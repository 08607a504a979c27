"""The images of the files, folders and tables that a user names."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from remembering.data.folders import first_unreadable, readable, walk_images
from remembering.data.images import ImageFiles, ImageSequence, joined, subset
from remembering.data.tables import is_table, read_table
from remembering.errors import InvalidFileError, InvalidInputError
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.text import printable

_logger = logging.getLogger("remembering")


@dataclass(frozen=True, eq=False)
class FoundImages:
    """Images that a user named.

    Attributes:
        images: The images.
        names: Path of each image, or its row in a table of images.
        groups: Folder or table of each image.
        unreadable: Why images that were left out cannot be decoded, by name.
    """

    images: ImageSequence
    names: list[str]
    groups: list[str]
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def take(self, index: Tensor) -> FoundImages:
        """Return some of the images."""
        chosen = index.tolist()
        return replace(
            self,
            images=subset(self.images, index),
            names=[self.names[i] for i in chosen],
            groups=[self.groups[i] for i in chosen],
        )

    def only_readable(self, *, strict: bool = False, progress: Progress = SILENT) -> FoundImages:
        """Decode each image once, and return those that can be decoded.

        Args:
            strict: Whether an image that cannot be decoded is an error. By default it is left out,
                and a warning is logged.
            progress: Reports progress.

        Raises:
            InvalidFileError: If an image cannot be decoded and `strict` is True.
        """
        kept, problems = readable(self.images, progress)
        if problems and strict:
            raise first_unreadable(problems.values())
        for problem in problems.values():
            _logger.warning("skipped: %s", printable(problem))
        unreadable = {self.names[i]: problem for i, problem in problems.items()}
        return replace(self.take(kept), unreadable=unreadable)


def find_images(paths: Sequence[Path]) -> FoundImages:
    """Find the images of files, folders and tables, without decoding them.

    Args:
        paths: Image files, folders with images at any depth, or tables.

    Raises:
        InvalidFileError: If a path does not exist, or there are no images.
    """
    if not paths:
        raise InvalidInputError("no images are given; name image files, folders or tables")
    parts: list[ImageSequence] = []
    names: list[str] = []
    groups: list[str] = []
    for path in paths:
        if not path.exists():
            raise InvalidFileError(f"{path} does not exist; give image files, folders or tables")
        images = (
            ImageFiles(walk_images(path))
            if path.is_dir()
            else read_table(path).images
            if is_table(path)
            else ImageFiles([path])
        )
        parts += [images] if len(images) else []
        if isinstance(images, ImageFiles):
            names += [str(file) for file in images.paths]
            groups += [str(file.parent) for file in images.paths]
        else:
            names += [f"row {i} of {path}" for i in range(1, len(images) + 1)]
            groups += [str(path)] * len(images)
    if not parts:
        raise InvalidFileError(f"there are no images in {', '.join(map(str, paths))}")
    return FoundImages(joined(parts), names, groups)


def load_images(
    paths: Sequence[Path], *, strict: bool = False, progress: Progress = SILENT
) -> FoundImages:
    """Find images, and leave out those that cannot be decoded; see `FoundImages.only_readable`.

    Raises:
        InvalidFileError: If there are no images that can be decoded, or an image cannot be decoded
            and `strict` is True.
    """
    found = find_images(paths).only_readable(strict=strict, progress=progress)
    if not found.names:
        raise first_unreadable(found.unreadable.values())
    return found


def images_at(path: Path) -> ImageSequence:
    """Return the image of a file, or the images of a folder or table that can be decoded."""
    if path.is_dir() or is_table(path):
        return load_images([path]).images
    return ImageFiles([path])
