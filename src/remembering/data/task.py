"""Tasks: images with labels, learned together."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from remembering.data.images import (
    DatasetImages,
    ImageSequence,
    ImagesLike,
    as_images,
    class_folders,
)
from remembering.data.iterable import on_disk
from remembering.errors import InvalidInputError

if TYPE_CHECKING:
    import datasets

Label: TypeAlias = str | int
LabelsLike: TypeAlias = Iterable[Label] | np.ndarray[Any, Any] | Tensor


@dataclass(frozen=True, eq=False, init=False)
class Task:
    """Images and labels that are learned together.

    Tasks may have different numbers of classes, and a label may recur in a later task.

    Args:
        name: Name of the task.
        images: The images; see `remembering.data.images.as_images`.
        labels: One string or integer per image, all of one type.

    Attributes:
        classes: The distinct labels, sorted.
        targets: For each image the position of its label in `classes`, (n,).

    Raises:
        InvalidInputError: If images and labels do not match or are not acceptable.

    >>> task = Task("pets", torch.zeros(4, 1, 8, 8, dtype=torch.uint8), ["cat", "dog"] * 2)
    >>> task.classes, task.targets
    (('cat', 'dog'), tensor([0, 1, 0, 1]))
    """

    name: str
    images: ImageSequence
    labels: tuple[Label, ...]
    classes: tuple[Label, ...]
    targets: Tensor

    def __init__(self, name: str, images: ImagesLike, labels: LabelsLike):
        if not isinstance(name, str):
            raise InvalidInputError(f"the name of a task is {name!r}; pass a string")
        plain = tuple(_label(label, i, name) for i, label in enumerate(_as_list(labels)))
        sequence = as_images(images, len(plain))
        if len(sequence) != len(plain):
            raise InvalidInputError(
                f"task '{name}' has {len(sequence)} images but {len(plain)} labels; "
                "pass one label per image"
            )
        if not plain:
            raise InvalidInputError(f"task '{name}' is empty; pass images and labels")
        if len({type(label) for label in plain}) > 1:
            raise InvalidInputError(f"task '{name}' mixes string and integer labels; use one type")
        classes = tuple(sorted(set(plain)))
        position = {label: i for i, label in enumerate(classes)}
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "images", sequence)
        object.__setattr__(self, "labels", plain)
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "targets", torch.tensor([position[label] for label in plain]))

    def __len__(self) -> int:
        return len(self.labels)

    def check_learnable(self) -> None:
        """Check that there are at least two classes, with at least two images each.

        Raises:
            InvalidInputError: If not.
        """
        if len(self.classes) < 2:
            raise InvalidInputError(
                f"task '{self.name}' has only the class '{self.classes[0]}'; "
                "pass at least two classes"
            )
        label, count = min(Counter(self.labels).items(), key=lambda item: item[1])
        if count < 2:
            raise InvalidInputError(
                f"class '{label}' of task '{self.name}' has one image; pass at least two"
            )

    @classmethod
    def from_folder(cls, folder: str | Path, name: str | None = None) -> Task:
        """Create a task from a folder with one subfolder per class, named by its label.

        Args:
            folder: The folder.
            name: Name of the task. By default that of the folder.

        Raises:
            InvalidFileError: If the folder does not have this layout.
        """
        folder = Path(folder)
        images, labels = class_folders(folder)
        return cls(name or folder.resolve().name, images, labels)

    @classmethod
    def from_dataset(
        cls,
        dataset: datasets.Dataset | datasets.IterableDataset,
        name: str,
        image: str | None = None,
        label: str | None = None,
    ) -> Task:
        """Create a task from a dataset of the `datasets` library.

        Images stored as paths of local files are read; URLs are not followed.

        Args:
            dataset: One split. A streaming dataset is written to disk first; see `on_disk`.
            name: Name of the task.
            image: Name of the image column. By default it is found by its type.
            label: Name of the label column. By default it is found by its name or type.

        Raises:
            InvalidInputError: If a column is missing, or the labels are not acceptable.
        """
        import datasets

        if isinstance(dataset, datasets.IterableDataset):
            known = dataset.features is not None
            columns = list(dataset_columns(dataset, image, label)) if known else []
            dataset = on_disk(dataset, columns, name)
        if not isinstance(dataset, datasets.Dataset):
            raise InvalidInputError(
                f"task '{name}' got a {type(dataset).__name__}; pass one dataset, such as its "
                "'train' split"
            )
        image, label = dataset_columns(dataset, image, label)
        images = DatasetImages(dataset, image, follow_paths=True)
        return cls(name, images, dataset_labels(dataset, label))


def dataset_columns(
    dataset: datasets.Dataset | datasets.IterableDataset,
    image: str | None = None,
    label: str | None = None,
) -> tuple[str, str]:
    """Return the names of the image and label columns of a dataset; see `Task.from_dataset`."""
    features = dataset.features
    for column in (image, label):
        if column is not None and column not in features:
            raise InvalidInputError(
                f"the dataset has no column '{column}'; it has {', '.join(features)}"
            )
    if image is None:
        image = next((n for n, f in features.items() if type(f).__name__ == "Image"), None)
    if label is None:
        typed = [n for n, f in features.items() if type(f).__name__ == "ClassLabel"]
        named = [n for n in ("fine_label", "label", "labels") if n in features]
        label = next(iter([*named, *typed]), None)
    if image is None or label is None:
        raise InvalidInputError(
            f"no {'image' if image is None else 'label'} column found among "
            f"{', '.join(features)}; pass its name"
        )
    return image, label


def dataset_labels(dataset: datasets.Dataset, column: str) -> list[Label]:
    """Return the labels of a dataset, as class names where the dataset has them."""
    # In Arrow's own types: `datasets` would decode a column that is declared to hold images.
    table = dataset.select_columns([column]).with_format("arrow")[:]
    labels: list[Label] = table.column(column).to_pylist()
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
        return isinstance(label, int) and 0 <= label < len(names)
    return isinstance(label, str | int)


def _as_list(labels: Any) -> list[Any]:
    if not isinstance(labels, Iterable):
        raise InvalidInputError(f"labels are {labels!r}; pass a list with one label per image")
    return labels.tolist() if isinstance(labels, Tensor | np.ndarray) else list(labels)


def _label(label: Any, position: int, task: str) -> Label:
    if isinstance(label, str):
        return str(label)  # also converts NumPy's strings
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        return int(label)
    raise InvalidInputError(
        f"label {position} of task '{task}' is {label!r}; labels are strings or integers"
    )
