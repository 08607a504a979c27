"""Tasks: images with labels, learned together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from remembering.data import interop
from remembering.data.columns import (
    IMAGE_NAMES,
    LABEL_NAMES,
    Label,
    dataset_columns,
    dataset_labels,
    require_column,
)
from remembering.data.conversion import as_images
from remembering.data.folders import class_folders, first_unreadable, readable
from remembering.data.images import (
    DatasetImages,
    ImageList,
    ImageSequence,
    ImagesLike,
    subset,
)
from remembering.data.iterable import on_disk
from remembering.errors import InvalidInputError
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.text import printable

__all__ = ["Label", "Task"]

LabelsLike: TypeAlias = Iterable[Label] | np.ndarray[Any, Any] | Tensor


_logger = logging.getLogger("remembering")


@dataclass(frozen=True, eq=False, init=False)
class Task:
    """Images and labels that are learned together.

    Tasks may have different numbers of classes, and a label may recur in a later task.

    Args:
        name: Name of the task.
        images: The images; see `remembering.data.conversion.as_images`.
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

    def only_readable(self, *, strict: bool = False, progress: Progress = SILENT) -> Task:
        """Return the task without images that cannot be decoded, and log a warning for each.

        Every image is decoded once.

        Args:
            strict: Raise instead.
            progress: Reports progress.

        Raises:
            InvalidFileError: If an image cannot be decoded and `strict` is True, or if all cannot.
        """
        kept, problems = readable(self.images, progress)
        if problems and (strict or not len(kept)):
            raise first_unreadable(problems.values())
        for problem in problems.values():
            _logger.warning("skipped: %s", printable(problem))
        if not problems:
            return self
        return Task(self.name, subset(self.images, kept), [self.labels[i] for i in kept.tolist()])

    @classmethod
    def from_folder(cls, folder: str | Path, name: str | None = None) -> Task:
        """Create a task from a folder with one subfolder per class, named by its label.

        Args:
            folder: The folder. Images in subfolders of a class folder belong to the class.
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
        dataset: Any,
        name: str,
        image: str | None = None,
        label: str | None = None,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> Task:
        """Create a task from a dataset of another library.

        Args:
            dataset: One of these:

                - a split of the `datasets` library. A streaming one is written to disk first; see
                  `on_disk`. Images stored as paths of local files are read; URLs are not followed;
                - a data frame of pandas with a column of images or of paths;
                - a torch dataset of pairs (image, label), which is read once for its labels and
                  then on access: it must return the same image every time;
                - a torch data loader, or another iterable of pairs; its images are kept in memory.
            name: Name of the task.
            image: Name of the image column. By default it is found by its type or name.
            label: Name of the label column. By default it is found by its name or type.
            mean: If a torch dataset or data loader normalises images, the mean of each channel.
            std: The same for the standard deviation.

        Raises:
            InvalidInputError: If a column is missing, or the labels are not acceptable.
        """
        if interop.is_data_frame(dataset):
            images = dataset[require_column(dataset.columns, image, IMAGE_NAMES)]
            labels = dataset[require_column(dataset.columns, label, LABEL_NAMES)]
            return cls(name, list(images), labels.tolist())
        if interop.is_torch_dataset(dataset):
            items = (interop.item_parts(dataset[i])[1] for i in range(len(dataset)))
            return cls(name, interop.TorchImages(dataset, mean, std), list(map(_scalar, items)))
        if isinstance(dataset, torch.utils.data.DataLoader):
            pairs = list(interop.loader_items(dataset, mean, std))
            return cls(name, ImageList([i for i, _ in pairs]), [label for _, label in pairs])

        import datasets

        if isinstance(dataset, datasets.IterableDataset):
            known = dataset.features is not None
            columns = list(dataset_columns(dataset, image, label)) if known else []
            dataset = on_disk(dataset, columns, name)
        if isinstance(dataset, dict) or not isinstance(dataset, Iterable):
            raise InvalidInputError(
                f"task '{name}' got a {type(dataset).__name__}; pass one dataset, such as its "
                "'train' split"
            )
        if not isinstance(dataset, datasets.Dataset):
            parts = [interop.item_parts(item) for item in dataset]
            return cls(name, [i for i, _ in parts], [_scalar(label) for _, label in parts])
        image, label = dataset_columns(dataset, image, label)
        images = DatasetImages(dataset, image, follow_paths=True)
        return cls(name, images, dataset_labels(dataset, label))


def _scalar(label: Any) -> Any:
    return label.item() if isinstance(label, Tensor) and label.numel() == 1 else label


def _as_list(labels: Any) -> list[Any]:
    if isinstance(labels, str) or not isinstance(labels, Iterable):
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
