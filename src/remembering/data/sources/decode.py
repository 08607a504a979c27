"""Decode a data set of small images of one size, once, into one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from remembering.data.images import DatasetImages, ImageSequence
from remembering.data.sources.base import LabelledImages
from remembering.data.task import Label, dataset_columns, dataset_labels
from remembering.errors import RememberingError

if TYPE_CHECKING:
    import datasets


def decode_dataset(
    dataset: datasets.Dataset, classes: tuple[Label, ...], where: str
) -> LabelledImages:
    """A dataset whose classes are known: its labels become positions in `classes`."""
    image, label = dataset_columns(dataset)
    labels = positions(dataset_labels(dataset, label), classes, where)
    return LabelledImages(stack(DatasetImages(dataset, image), where), labels)


def positions(labels: Sequence[Label], classes: tuple[Label, ...], where: str) -> Tensor:
    """Where each label stands among the classes; numbers are positions already.

    Only letters and digits matter: the hub writes "T - shirt / top", and no folder has a slash.
    """
    place = {_plain(label): i for i, label in enumerate(classes)}
    found = {name: place.get(_plain(name), -1) for name in set(labels) if isinstance(name, str)}
    unknown = sorted(name for name, position in found.items() if position < 0)
    if unknown:
        raise RememberingError(
            f"{where} has the class '{unknown[0]}', which is not one of {classes[0]} ... "
            f"{classes[-1]}; it is another data set"
        )
    return torch.tensor([found[name] if isinstance(name, str) else name for name in labels])


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
    return "".join(character for character in str(label).casefold() if character.isalnum())
