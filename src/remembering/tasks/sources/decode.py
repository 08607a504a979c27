"""Decode a data set of small images of one size, once, into one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from remembering.errors import RememberingError
from remembering.images import DatasetImages, ImageSequence
from remembering.tasks.sources.base import LabelledImages
from remembering.tasks.task import Label, dataset_columns

if TYPE_CHECKING:
    import datasets


def decode_dataset(
    dataset: datasets.Dataset, classes: tuple[Label, ...], where: str
) -> LabelledImages:
    """A dataset whose classes are known: its labels become positions in `classes`."""
    image, label = dataset_columns(dataset)
    labels = positions(dataset_labels(dataset, label), classes, where)
    return LabelledImages(stack(DatasetImages(dataset, image), where), labels)


def dataset_labels(dataset: datasets.Dataset, column: str) -> list[Label]:
    """The labels of a dataset: by name where it knows the names."""
    labels: list[Label] = dataset[column][:]
    names = getattr(dataset.features[column], "names", None)
    return labels if names is None else [names[i] for i in labels]


def positions(labels: Sequence[Label], classes: tuple[Label, ...], where: str) -> Tensor:
    """Where each label stands among the classes; numbers are positions already.

    Spaces and capitals do not matter: the hub writes "T - shirt / top".
    """
    place = {_plain(label): i for i, label in enumerate(classes)}
    unknown = [name for name in labels if isinstance(name, str) and _plain(name) not in place]
    if unknown:
        raise RememberingError(
            f"{where} has the class '{unknown[0]}', which is not one of {classes[0]} ... "
            f"{classes[-1]}; it is another data set"
        )
    return torch.tensor([place[_plain(name)] if isinstance(name, str) else name for name in labels])


def stack(images: ImageSequence, where: str) -> Tensor:
    """All images as one uint8 tensor (n, channels, height, width)."""
    decoded = images[torch.arange(len(images))]
    if isinstance(decoded, Tensor):
        return decoded
    shapes = {tuple(image.shape) for image in decoded}
    if len(shapes) != 1:
        raise RememberingError(
            f"the images of {where} have {len(shapes)} sizes instead of one; get it again"
        )
    return torch.stack(decoded)


def _plain(label: Label) -> str:
    return "".join(str(label).split()).casefold()
