"""Find the columns of images and labels in tables: datasets, data frames, CSV and Parquet."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from remembering.errors import InvalidInputError, reason

if TYPE_CHECKING:
    import datasets

Label: TypeAlias = str | int

IMAGE_NAMES = ("image", "images", "img", "path", "file", "filename", "file_name", "image_path")
LABEL_NAMES = ("fine_label", "label", "labels", "class", "target", "category")
TASK_NAMES = ("task",)


def find_column(columns: Iterable[str], names: Iterable[str]) -> str | None:
    """Return the first column that has one of these names, whatever their case."""
    folded = {str(column).casefold(): column for column in columns}
    return next((folded[name] for name in names if name in folded), None)


def require_column(columns: Iterable[str], name: str | None, usual: Iterable[str]) -> str:
    """Return a column by name, or by one of the usual names if `name` is None.

    Raises:
        InvalidInputError: If there is none.
    """
    columns = list(columns)
    listed = ", ".join(map(str, columns))
    found = find_column(columns, usual) if name is None else name
    if found is None:
        raise InvalidInputError(
            f"no {next(iter(usual))} column found among {listed}; pass its name"
        )
    if found not in columns:
        raise InvalidInputError(f"there is no column '{found}'; there are {listed}")
    return found


def image_column(
    dataset: datasets.Dataset | datasets.IterableDataset, name: str | None = None
) -> str:
    """Return the name of the image column of a dataset, by its type if `name` is None."""
    features = dataset.features
    typed = [n for n, f in features.items() if type(f).__name__ == "Image"]
    return require_column(features, name or next(iter(typed), None), IMAGE_NAMES[:1])


def label_column(
    dataset: datasets.Dataset | datasets.IterableDataset, name: str | None = None
) -> str:
    """Return the name of the label column of a dataset, by name or type if `name` is None."""
    features = dataset.features
    typed = [n for n, f in features.items() if type(f).__name__ == "ClassLabel"]
    found = name or find_column(features, LABEL_NAMES[:3]) or next(iter(typed), None)
    return require_column(features, found, LABEL_NAMES[1:])


def dataset_columns(
    dataset: datasets.Dataset | datasets.IterableDataset,
    image: str | None = None,
    label: str | None = None,
) -> tuple[str, str]:
    """Return the names of the image and label columns of a dataset; see `Task.from_dataset`."""
    return image_column(dataset, image), label_column(dataset, label)


def dataset_labels(dataset: datasets.Dataset, column: str) -> list[Label]:
    """Return the labels of a dataset, as class names where the dataset has them."""
    # In Arrow's own types: `datasets` would decode a column that is declared to hold images.
    table = dataset.select_columns([column]).with_format("arrow")[:]
    try:
        labels: list[Label] = table.column(column).to_pylist()
    except (ValueError, OverflowError) as error:  # such as times that Python cannot represent
        raise InvalidInputError(f"column '{column}' has no labels ({reason(error)})") from error
    names = getattr(dataset.features[column], "names", None)
    # Data sets that keep their test labels secret have None or -1 there.
    bad = [label for label in labels if not _is_label(label, names)]
    if bad:
        raise InvalidInputError(
            f"column '{column}' has the label {reprlib.repr(bad[0])}; labels are strings or "
            "integers, leave out the rows without one"
        )
    return labels if names is None else [names[i] for i in labels]


def _is_label(label: object, names: list[str] | None) -> bool:
    if names is not None:
        return type(label) is int and 0 <= label < len(names) and isinstance(names[label], str)
    return type(label) in (str, int)  # not bool
