"""A task: images and what they show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from remembering.data.images import DatasetImages, ImageSequence, as_images, class_folders
from remembering.data.iterable import on_disk
from remembering.errors import RememberingError

if TYPE_CHECKING:
    import datasets

Label = str | int


@dataclass(frozen=True, eq=False)
class Task:
    """Images with labels that are learned together by one adapter.

    Labels are strings or integers. Tasks may have different numbers of classes, and a label may
    come back in a later task.

    >>> task = Task("pets", torch.zeros(4, 1, 8, 8, dtype=torch.uint8), ["cat", "dog"] * 2)
    >>> task.classes, task.targets
    (('cat', 'dog'), tensor([0, 1, 0, 1]))
    """

    name: str
    images: Any
    labels: Any
    classes: tuple[Label, ...] = field(init=False)
    targets: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise RememberingError(f"the name of a task is {self.name!r}; give it a string")
        images: ImageSequence = as_images(self.images)
        labels = tuple(_label(label, i, self.name) for i, label in enumerate(_plain(self.labels)))
        if len(images) != len(labels):
            raise RememberingError(
                f"task '{self.name}' has {len(images)} images but {len(labels)} labels; "
                "give one label per image"
            )
        if not labels:
            raise RememberingError(f"task '{self.name}' is empty; give it images and labels")
        if len({type(label) for label in labels}) > 1:
            raise RememberingError(
                f"task '{self.name}' mixes string and integer labels; use one kind"
            )
        classes = tuple(sorted(set(labels)))
        position = {label: i for i, label in enumerate(classes)}
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "targets", torch.tensor([position[label] for label in labels]))

    def __len__(self) -> int:
        return len(self.labels)

    def check_learnable(self) -> None:
        """Raise if there is nothing to tell apart, or a class of which one image says nothing."""
        if len(self.classes) < 2:
            raise RememberingError(
                f"task '{self.name}' has only the class '{self.classes[0]}'; "
                "an adapter needs at least two classes to tell apart"
            )
        label, count = min(Counter(self.labels).items(), key=lambda item: item[1])
        if count < 2:
            raise RememberingError(
                f"class '{label}' of task '{self.name}' has one image; give at least two"
            )

    @classmethod
    def from_folder(cls, folder: str | Path, name: str | None = None) -> Task:
        """A folder of class folders; the folders' names are the labels."""
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
        """A `datasets.Dataset`; its image and label columns are found by type if not named.

        A streaming one is written to disk first (see `tasks.streaming`).
        """
        import datasets

        if isinstance(dataset, datasets.IterableDataset):
            known = dataset.features is not None
            columns = list(dataset_columns(dataset, image, label)) if known else []
            dataset = on_disk(dataset, columns, name)
        if not isinstance(dataset, datasets.Dataset):
            raise RememberingError(
                f"task '{name}' was given a {type(dataset).__name__}; give one dataset, such as "
                "its 'train' part"
            )
        dataset = dataset.with_format(None)  # plain rows, whatever its user made of them
        image, label = dataset_columns(dataset, image, label)
        return cls(name, DatasetImages(dataset, image), dataset_labels(dataset, label))


def dataset_columns(
    dataset: datasets.Dataset | datasets.IterableDataset,
    image: str | None = None,
    label: str | None = None,
) -> tuple[str, str]:
    """Which columns of a dataset hold the images and the labels."""
    features = dataset.features
    for wanted in (image, label):
        if wanted is not None and wanted not in features:
            raise RememberingError(
                f"the dataset has no column '{wanted}'; it has {', '.join(features)}"
            )
    if image is None:
        image = next((n for n, f in features.items() if type(f).__name__ == "Image"), None)
    if label is None:
        kinds = [n for n, f in features.items() if type(f).__name__ == "ClassLabel"]
        named = [n for n in ("fine_label", "label", "labels") if n in features]
        label = next(iter([*named, *kinds]), None)
    if image is None or label is None:
        raise RememberingError(
            f"no {'image' if image is None else 'label'} column found among "
            f"{', '.join(features)}; name it"
        )
    return image, label


def dataset_labels(dataset: datasets.Dataset, column: str) -> list[Label]:
    """The labels of a dataset: by name where it knows the names."""
    labels: list[Label] = dataset[column][:]
    names = getattr(dataset.features[column], "names", None)
    # Where the hub keeps labels back, it gives None or -1.
    wrong = [label for label in labels if not _is_label(label, names is not None)]
    if wrong:
        raise RememberingError(
            f"column '{column}' has the label {wrong[0]!r}; labels are strings or whole numbers, "
            "leave out the rows without one"
        )
    return labels if names is None else [names[i] for i in labels]


def _is_label(label: object, named: bool) -> bool:
    return isinstance(label, str) or (isinstance(label, int) and not (named and label < 0))


def _plain(labels: Any) -> list[Any]:
    if not isinstance(labels, Iterable):
        raise RememberingError(f"labels are {labels!r}; give one for each image, in a list")
    return labels.tolist() if isinstance(labels, Tensor | np.ndarray) else list(labels)


def _label(label: Any, position: int, task: str) -> Label:
    if isinstance(label, str):
        return str(label)  # numpy has strings of its own
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        return int(label)
    raise RememberingError(
        f"label {position} of task '{task}' is {label!r}; labels are strings or integers"
    )
