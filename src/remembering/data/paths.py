"""The tasks of a folder or a table that a user names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from remembering.data.folders import task_folders
from remembering.data.images import joined, subset
from remembering.data.tables import Table, is_table, read_table
from remembering.data.task import Task
from remembering.errors import InvalidFileError
from remembering.runtime.progress import SILENT, Progress, as_progress


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
