"""The contract of data sources: training and test images with labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from remembering.data.images import ImageSequence, subset
from remembering.data.task import Label
from remembering.errors import InvalidFileError


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images, and for each the position of its class in `Source.classes`."""

    images: ImageSequence
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> LabelledImages:
        """Return the images and labels at these positions, in this order."""
        return LabelledImages(subset(self.images, index), self.labels[index])


@dataclass(frozen=True, eq=False)
class Splits:
    """The training and test split of a data set."""

    train: LabelledImages
    test: LabelledImages


# Reads a folder for known classes; returns None if the folder is in another layout.
Reader = Callable[[Path, tuple[Label, ...]], Splits | None]


@dataclass(frozen=True, eq=False)
class Source:
    """A named data set. Every class has images in both splits."""

    name: str
    train: LabelledImages
    test: LabelledImages
    classes: tuple[Label, ...]

    def __post_init__(self) -> None:
        for part, data in (("train", self.train), ("test", self.test)):
            if len(data.images) != len(data.labels):
                raise InvalidFileError(
                    f"the {part} split of '{self.name}' has {len(data.images)} images but "
                    f"{len(data.labels)} labels; its files do not match, download them again"
                )
            if len(data) and int(data.labels.min()) < 0:
                raise InvalidFileError(
                    f"the {part} split of '{self.name}' has images without a label; label them"
                )
            # Before counting, which takes memory in proportion to the largest label.
            if len(data) and int(data.labels.max()) >= len(self.classes):
                raise InvalidFileError(
                    f"the {part} split of '{self.name}' has the label {int(data.labels.max())}, "
                    f"but there are only {len(self.classes)} classes; its files are damaged, "
                    "download them again"
                )
            counts = torch.bincount(data.labels, minlength=len(self.classes))
            missing = [self.classes[i] for i in (counts == 0).nonzero().flatten().tolist()]
            if missing:
                raise InvalidFileError(
                    f"the {part} split of '{self.name}' has no image of class '{missing[0]}'"
                    + (f" and {len(missing) - 1} more" if missing[1:] else "")
                    + "; every class needs training and test images"
                )


def is_present(path: Path) -> bool:
    """Return whether there is a file of any kind; opening it tells whether it is acceptable."""
    return path.exists() and not path.is_dir()


def hold_out(data: LabelledImages, classes: tuple[Label, ...], where: str) -> Splits:
    """Hold out a fifth of the images of each class (at least one) for testing.

    The split does not depend on the seed of a run, so that results of different seeds share one
    test set. NumPy guarantees the numbers of `RandomState` across versions.

    Args:
        data: All images.
        classes: The labels that positions refer to, for error messages.
        where: Description of the data set for error messages.

    Raises:
        InvalidFileError: If a class has fewer than two images.
    """
    random = np.random.RandomState(0)
    train: list[Tensor] = []
    test: list[Tensor] = []
    for i, label in enumerate(classes):
        members = (data.labels == i).nonzero().flatten()
        if len(members) < 2:
            raise InvalidFileError(
                f"class '{label}' of {where} has {len(members)} image; "
                "add at least one more, to train and to test"
            )
        members = members[torch.from_numpy(random.permutation(len(members)))]
        held_out = max(1, round(len(members) / 5))
        test.append(members[:held_out])
        train.append(members[held_out:])
    return Splits(
        data.take(torch.cat(train).sort().values), data.take(torch.cat(test).sort().values)
    )
