"""Read tables of image files and labels: CSV and Parquet.

A table names its images by paths relative to its own folder. A Parquet file may contain the images
themselves instead; paths inside of such images are never followed.
"""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remembering.data.columns import (
    IMAGE_NAMES,
    LABEL_NAMES,
    TASK_NAMES,
    Label,
    dataset_labels,
    find_column,
    image_column,
    label_column,
)
from remembering.data.images import DatasetImages, ImageFiles, ImageSequence
from remembering.data.parquet_file import read_parquet
from remembering.errors import InvalidFileError, InvalidInputError, reason
from remembering.runtime.reading import read_regular, require_regular

SUFFIXES = (".csv", ".tsv", ".parquet")
MAX_BYTES = 256 * 1024**2
"""Largest accepted CSV file."""


@dataclass(frozen=True, eq=False)
class Table:
    """Images of a table with their labels and tasks, where it has such columns."""

    images: ImageSequence
    labels: list[Label] | None
    tasks: list[str] | None


def is_table(path: Path) -> bool:
    """Return whether a path is that of a table, by its suffix."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def read_table(path: Path) -> Table:
    """Read a CSV or Parquet file with a column of images, and perhaps of labels and tasks.

    Columns are found by name: `path`, `file` or `image`; `label` or `class`; `task`. In Parquet
    files, images and class names are also found by their type.

    Raises:
        InvalidFileError: If the file is damaged, has no column of images, or names an image
            outside of its own folder.
    """
    try:
        return _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    except InvalidInputError as error:  # about its columns
        raise InvalidFileError(f"{path}: {error}") from error


def _read_csv(path: Path) -> Table:
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig")
        header = text.partition("\n")[0]
        delimiter = max(",;\t", key=header.count)  # spreadsheets write what their language uses
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidFileError(f"{path} is not a CSV file in UTF-8 ({reason(error)})") from error
    if not rows:
        raise InvalidFileError(f"{path} has no rows below its header")
    columns = [column for column in rows[0] if column]
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise InvalidFileError(f"line {number} of {path} has not as many cells as its header")
    image = find_column(columns, IMAGE_NAMES)
    if image is None:
        raise InvalidFileError(
            f"{path} has no column of images among {', '.join(columns)}; name it 'path'"
        )
    label, task = find_column(columns, LABEL_NAMES), find_column(columns, TASK_NAMES)
    return Table(
        _files(path, [row[image] for row in rows]),
        None if label is None else [row[label] for row in rows],
        None if task is None else [row[task] for row in rows],
    )


def _read_parquet(path: Path) -> Table:
    import datasets

    require_regular(path)
    try:
        dataset = datasets.Dataset(read_parquet(path))
        dataset.data.validate(full=True)  # strings must be UTF-8
    except Exception as error:  # pyarrow and datasets each have their own exceptions
        raise InvalidFileError(f"{path} is not a Parquet file ({reason(error)})") from error
    features: dict[str, Any] = dataset.features
    typed = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    image = image_column(dataset, next(iter(typed), find_column(features, IMAGE_NAMES)))
    task = find_column(features, TASK_NAMES)
    try:
        labels = dataset_labels(dataset, label_column(dataset))
    except InvalidInputError:
        if find_column(features, LABEL_NAMES):
            raise
        labels = None
    if getattr(features[image], "dtype", None) in ("string", "large_string"):
        images: ImageSequence = _files(path, dataset_labels(dataset, image))
    else:
        images = DatasetImages(dataset, image)
    return Table(
        images, labels, None if task is None else list(map(str, dataset_labels(dataset, task)))
    )


def _files(table: Path, names: list[Any]) -> ImageFiles:
    """Return the files that a table names, all of them below its folder."""
    folder = table.parent
    root = os.path.realpath(folder)
    for row, name in enumerate(names, start=1):
        # `Path.resolve` would raise an exception of its own for a link to itself.
        inside = "\0" not in name and Path(os.path.realpath(folder / name)).is_relative_to(root)
        if not name or not inside:
            raise InvalidFileError(
                f"row {row} of {table} names '{name}', which is not below the folder of the table; "
                "paths are relative to it"
            )
    return ImageFiles([folder / name for name in names])
