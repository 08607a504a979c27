"""What every data source gives: images and labels to learn from, and others to be tested on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from remembering.data.images import ImageSequence, subset
from remembering.data.task import Label
from remembering.errors import RememberingError

# What the part to be tested on is called in folders and datasets, the first found wins.
TEST_PARTS = ("test", "validation", "valid", "val")


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images, and for each the position of its class in `Source.classes`."""

    images: ImageSequence
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> LabelledImages:
        """The part at these positions, in this order."""
        return LabelledImages(subset(self.images, index), self.labels[index])


@dataclass(frozen=True, eq=False)
class Splits:
    """The two parts of a data set."""

    train: LabelledImages
    test: LabelledImages


# Reads a folder, given the classes; None for a folder that is in another layout.
Reader = Callable[[Path, tuple[Label, ...]], Splits | None]


@dataclass(frozen=True, eq=False)
class Source:
    """A data set by name. Every class has images in both parts."""

    name: str
    train: LabelledImages
    test: LabelledImages
    classes: tuple[Label, ...]

    def __post_init__(self) -> None:
        for part, data in (("train", self.train), ("test", self.test)):
            if len(data.images) != len(data.labels):
                raise RememberingError(
                    f"the {part} part of '{self.name}' has {len(data.images)} images but "
                    f"{len(data.labels)} labels; its files do not belong together, get them again"
                )
            if len(data) and int(data.labels.min()) < 0:
                raise RememberingError(
                    f"the {part} part of '{self.name}' has images without a label; give each one"
                )
            counts = torch.bincount(data.labels, minlength=len(self.classes))
            if len(counts) > len(self.classes):
                raise RememberingError(
                    f"the {part} part of '{self.name}' has the label {len(counts) - 1}, but there "
                    f"are only {len(self.classes)} classes; its files are damaged, get them again"
                )
            missing = [self.classes[i] for i in (counts == 0).nonzero().flatten().tolist()]
            if missing:
                raise RememberingError(
                    f"the {part} part of '{self.name}' has no image of class '{missing[0]}'"
                    + (f" and {len(missing) - 1} more" if missing[1:] else "")
                    + "; every class needs images to learn from and to be tested on"
                )


def reason(error: BaseException) -> str:
    """What another library raised, in one line of one message."""
    return " ".join(str(error).split()) or type(error).__name__


def hold_out(data: LabelledImages, classes: tuple[Label, ...], where: str) -> Splits:
    """Hold out every fifth image of each class (at least one) for testing, always the same ones.

    `RandomState` is frozen by NumPy for good, so the parts stay the same across versions, and
    they never depend on the seed of a run: results of different seeds are tested alike.
    """
    random = np.random.RandomState(0)
    train: list[Tensor] = []
    test: list[Tensor] = []
    for i, label in enumerate(classes):
        members = (data.labels == i).nonzero().flatten()
        if len(members) < 2:
            raise RememberingError(
                f"class '{label}' of {where} has {len(members)} image; "
                "give at least two, one to learn from and one to be tested on"
            )
        members = members[torch.from_numpy(random.permutation(len(members)))]
        held_out = max(1, round(len(members) / 5))
        test.append(members[:held_out])
        train.append(members[held_out:])
    return Splits(
        data.take(torch.cat(train).sort().values), data.take(torch.cat(test).sort().values)
    )
