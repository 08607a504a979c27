"""Walk folders of images: class folders, folders of tasks, and folders nested in them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from remembering.data.decoding import image_files
from remembering.data.images import ImageFiles, ImageSequence
from remembering.errors import InvalidFileError
from remembering.runtime.progress import SILENT, Progress

TEST_PARTS = ("test", "validation", "valid", "val")
"""Names of the test split in folders and datasets, in order of preference."""

_Identity = tuple[int, int]


def _identity(folder: Path) -> _Identity:
    """Return the device and inode of a folder, which all of its names share."""
    info = folder.stat()
    return info.st_dev, info.st_ino


def subfolders(folder: Path) -> list[Path]:
    """List the folders in a folder, sorted; hidden ones and links to a parent are skipped."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_dir()
        and not path.name.startswith(".")
        and not (path.is_symlink() and folder.resolve().is_relative_to(path.resolve()))
    ]


def walk_images(folder: Path) -> list[Path]:
    """List the image files in a folder and its subfolders.

    A folder that links lead to several times is listed once: links between a few folders can form
    more paths than can be listed.
    """
    found: list[Path] = []
    seen: set[_Identity] = set()
    waiting = [folder]
    while waiting:
        inner = waiting.pop()
        if _identity(inner) not in seen:
            seen.add(_identity(inner))
            found += image_files(inner)
            waiting += reversed(subfolders(inner))
    return found


def task_folders(folder: Path) -> list[Path]:
    """List the tasks in a folder: the folders whose subfolders are class folders.

    A folder is a task if one of its subfolders directly contains images; each of its subfolders is
    a class then, with all images below it. Otherwise its subfolders are searched for tasks.

    Returns:
        The folder itself if it is a task, or if no task is found.

    Raises:
        InvalidFileError: If it does not exist, or contains training and test images.
    """
    if not folder.is_dir():
        raise InvalidFileError(f"{folder} is not a folder; pass a folder with one folder per class")
    try:
        return _task_folders(folder, set())
    except RecursionError as error:
        raise InvalidFileError(f"the folders in {folder} are nested too deeply") from error


def _task_folders(folder: Path, seen: set[_Identity]) -> list[Path]:
    """List the tasks in a folder; `seen` are the folders that were searched, see `walk_images`."""
    seen.add(_identity(folder))
    inner = subfolders(folder)
    if any(image_files(path) for path in inner):
        return [folder]
    names = {path.name for path in inner}
    if "train" in names and not names.isdisjoint(TEST_PARTS):
        raise InvalidFileError(
            f"{folder} contains a training and a test split; pass one of them, such as "
            f"{folder / 'train'}"
        )
    tasks = [
        task
        for path in inner
        if _identity(path) not in seen
        for task in _task_folders(path, seen)
        if subfolders(task)
    ]
    return tasks or [folder]


def class_folders(folder: Path) -> tuple[ImageFiles, list[str]]:
    """List the images of a folder with one subfolder per class.

    Returns:
        The image files, and for each the name of its subfolder.

    Raises:
        InvalidFileError: If there are no class folders, or one of them has no images.
    """
    if not folder.is_dir():
        raise InvalidFileError(f"{folder} is not a folder; pass a folder with one folder per class")
    classes = subfolders(folder)
    if not classes:
        raise InvalidFileError(
            f"{folder} has no class folders; put the images of each class into a folder of its own"
        )
    first = task_folders(folder)[0]
    if first != folder:
        raise InvalidFileError(
            f"{folder} contains several tasks or nested folders, such as {first}; pass one of "
            "them, or load all with load_tasks"
        )
    paths: list[Path] = []
    labels: list[str] = []
    for class_folder in classes:
        files = walk_images(class_folder)
        if not files:
            raise InvalidFileError(f"{class_folder} has no images; add some or remove the folder")
        paths += files
        labels += [class_folder.name] * len(files)
    return ImageFiles(paths), labels


def readable(images: ImageSequence, progress: Progress = SILENT) -> tuple[Tensor, dict[int, str]]:
    """Decode each image once.

    Returns:
        The positions of those that can be decoded, and the reasons of the others by position.
    """
    problems: dict[int, str] = {}
    with progress.track("checking", len(images)) as step:
        for i in range(len(images)):
            try:
                images[torch.tensor([i])][0]
            except InvalidFileError as error:
                problems[i] = str(error)
            step(1)
    return torch.tensor([i for i in range(len(images)) if i not in problems]).long(), problems


def first_unreadable(problems: Iterable[str]) -> InvalidFileError:
    """Return the error for images that must all be readable."""
    first, *others = problems
    more = f", and {len(others)} more cannot be read" if others else ""
    return InvalidFileError(f"{first}{more}")
