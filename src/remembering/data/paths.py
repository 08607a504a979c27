"""From the paths that a user names to images and tasks: folders, tables and image files."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from remembering.data.folders import first_unreadable, readable, task_folders, walk_images
from remembering.data.images import ImageFiles, ImageSequence, joined, subset
from remembering.data.tables import Table, is_table, read_table
from remembering.data.task import Task
from remembering.errors import InvalidFileError, InvalidInputError
from remembering.runtime.progress import SILENT, Progress, as_progress
from remembering.runtime.text import printable

_logger = logging.getLogger("remembering")


def load_tasks(
    path: str | Path, *, strict: bool = False, progress: Progress | bool = SILENT
) -> list[Task]:
    """Load the tasks of a folder or table.

    Args:
        path: A folder of class folders, a folder of such folders, or a table. A table with a column
            `task` has several tasks. Tasks are in the order of their names, or of the rows.
        strict: Whether an image that cannot be decoded is an error. By default it is left out, and
            a warning is logged.
        progress: Reports progress. True: bars on the terminal or in the notebook.

    Raises:
        InvalidFileError: If there are no tasks, or an image cannot be decoded and `strict` is True.
    """
    path = Path(path)
    tasks = _table_tasks(path) if is_table(path) else _folder_tasks(path)
    shown = as_progress(progress)
    return [task.only_readable(strict=strict, progress=shown) for task in tasks]


def load_stream(path: Path, *, strict: bool = False, progress: Progress = SILENT) -> Task:
    """Load a stream of labelled images: the rows of a table, or one task folder after another.

    The classes of a task folder take turns.

    Args:
        path: See `load_tasks`.
        strict: See `load_tasks`.
        progress: Reports progress.
    """
    if is_table(path):
        stream = _labelled(path, read_table(path))
    else:
        tasks = [_interleaved(task) for task in _folder_tasks(path)]
        labels = [label for task in tasks for label in task.labels]
        stream = Task(path.resolve().name, joined([task.images for task in tasks]), labels)
    return stream.only_readable(strict=strict, progress=progress)


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


def _folder_tasks(folder: Path) -> list[Task]:
    found = task_folders(folder)
    if found == [folder]:
        return [Task.from_folder(folder)]
    return [Task.from_folder(task, task.relative_to(folder).as_posix()) for task in found]


def _table_tasks(path: Path) -> list[Task]:
    table = read_table(path)
    whole = _labelled(path, table)
    if table.tasks is None:
        return [whole]
    rows: dict[str, list[int]] = {}
    for i, name in enumerate(table.tasks):
        rows.setdefault(name, []).append(i)
    return [_selected(whole, name, index) for name, index in rows.items()]


def _labelled(path: Path, table: Table) -> Task:
    if table.labels is None:
        raise InvalidFileError(f"{path} has no column of labels; name it 'label'")
    return Task(path.stem, table.images, table.labels)


def _selected(task: Task, name: str, index: list[int]) -> Task:
    return Task(name, subset(task.images, torch.tensor(index)), [task.labels[i] for i in index])


def _interleaved(task: Task) -> Task:
    """Order images by their number within their class."""
    seen: Counter[str | int] = Counter()
    ranks = []
    for label in task.labels:
        ranks.append(seen[label])
        seen[label] += 1
    return _selected(task, task.name, sorted(range(len(task)), key=ranks.__getitem__))
