"""Decode a data set of small images of one size into one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from remembering.data.columns import Label, dataset_columns, dataset_labels
from remembering.data.images import DatasetImages, ImageSequence
from remembering.data.sources.base import LabelledImages
from remembering.errors import InvalidFileError

if TYPE_CHECKING:
    import datasets


def decode_dataset(
    dataset: datasets.Dataset, classes: tuple[Label, ...], where: str
) -> LabelledImages:
    """Decode a dataset of known classes; its labels become positions in `classes`."""
    image, label = dataset_columns(dataset)
    labels = positions(dataset_labels(dataset, label), classes, where)
    return LabelledImages(stack(DatasetImages(dataset, image), where), labels)


def positions(labels: Sequence[Label], classes: tuple[Label, ...], where: str) -> Tensor:
    """Return the position of each label in `classes`; integers are positions already.

    Only letters and digits are compared: the hub writes "T - shirt / top", and the name of a
    folder cannot contain a slash.

    Raises:
        InvalidFileError: If a label is not one of the classes.
    """
    place = {_normalised(label): i for i, label in enumerate(classes)}
    names = {name for name in labels if isinstance(name, str)}
    found = {name: place.get(_normalised(name), -1) for name in names}
    unknown = sorted(name for name, position in found.items() if position < 0)
    if unknown:
        raise InvalidFileError(
            f"{where} has the class '{unknown[0]}', which is not one of {classes[0]} ... "
            f"{classes[-1]}; it is another data set"
        )
    largest = max((label for label in labels if isinstance(label, int)), default=0)
    if largest >= len(classes):
        raise InvalidFileError(
            f"{where} has the label {largest}, but there are only {len(classes)} classes; it is "
            "another data set"
        )
    return torch.tensor(
        [found[name] if isinstance(name, str) else name for name in labels], dtype=torch.long
    )


def stack(images: ImageSequence, where: str) -> Tensor:
    """Decode all images into one uint8 tensor (n, channels, height, width).

    Raises:
        InvalidFileError: If the images differ in size.
    """
    batch = images[torch.arange(len(images))]
    if isinstance(batch, Tensor):
        return batch
    result = torch.empty(0)
    for i, image in enumerate(batch):
        if i == 0:
            result = image.new_empty(len(batch), *image.shape)
        if image.shape != result.shape[1:]:
            raise InvalidFileError(
                f"the images of {where} have the shapes {tuple(result.shape[1:])} and "
                f"{tuple(image.shape)} instead of one; download them again"
            )
        result[i] = image
    return result


def _normalised(label: Label) -> str:
    return "".join(character for character in str(label).casefold() if character.isalnum())
