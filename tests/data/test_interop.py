"""Images of other libraries give the same task and the same predictions' input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from remembering import denormalise
from remembering.data.conversion import as_images
from remembering.data.task import Task
from remembering.errors import InvalidInputError

PIXELS = torch.randint(0, 256, (5, 3, 6, 7), dtype=torch.uint8)
LABELS = [3, 4, 4, 3, 3]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def normalised() -> Tensor:
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (MEAN, STD))
    return (PIXELS / 255 - mean) / std


class Pairs(Dataset[tuple[Image.Image, int]]):
    """As torchvision's datasets: a Pillow image and a label."""

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return pil(index), LABELS[index]


def pil(index: int) -> Image.Image:
    return Image.fromarray(PIXELS[index].permute(1, 2, 0).numpy())


def pairs() -> Iterator[tuple[Tensor, int]]:
    yield from zip(PIXELS, LABELS, strict=True)


def files(folder: Path) -> list[str]:
    paths = [folder / f"{i}.png" for i in range(len(PIXELS))]
    for i, path in enumerate(paths):
        pil(i).save(path)
    return list(map(str, paths))


SOURCES: dict[str, Callable[[Path], Any]] = {
    "torch dataset": lambda folder: Pairs(),
    "tensor dataset": lambda folder: TensorDataset(PIXELS, torch.tensor(LABELS)),
    "data loader": lambda folder: DataLoader(
        TensorDataset(PIXELS, torch.tensor(LABELS)), batch_size=2
    ),
    "generator": lambda folder: pairs(),
    "data frame of paths": lambda folder: pd.DataFrame({"path": files(folder), "label": LABELS}),
    "data frame of images": lambda folder: pd.DataFrame(
        {"image": [pil(i) for i in range(5)], "class": LABELS}
    ),
    "dataset": lambda folder: datasets.Dataset.from_dict(
        {"image": [pil(i) for i in range(5)], "label": LABELS},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    ),
}


def pixels(images: Any) -> Tensor:
    sequence = as_images(images)
    return torch.stack(list(sequence[torch.arange(len(sequence))]))


@pytest.mark.parametrize("source", SOURCES)
def test_tasks(source: str, tmp_path: Path) -> None:
    task = Task.from_dataset(SOURCES[source](tmp_path), "t")
    assert list(task.labels) == LABELS
    assert torch.equal(pixels(task.images), PIXELS)


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "generator"])
def test_images_to_predict(source: str, tmp_path: Path) -> None:
    assert torch.equal(pixels(SOURCES[source](tmp_path)), PIXELS)


def test_generators_and_series_of_images(tmp_path: Path) -> None:
    assert torch.equal(pixels(image for image in PIXELS), PIXELS)
    assert torch.equal(pixels(map(Path, files(tmp_path))), PIXELS)
    assert torch.equal(pixels(pd.Series(files(tmp_path))), PIXELS)


@pytest.mark.parametrize(
    "image",
    [
        PIXELS[0].permute(1, 2, 0),
        PIXELS[0].permute(1, 2, 0).numpy(),
        pil(0),
        PIXELS[0].permute(1, 2, 0) / 255,
    ],
)
def test_a_single_image(image: Any) -> None:
    assert torch.equal(pixels(image), PIXELS[:1])


def test_a_single_grey_image() -> None:
    assert torch.equal(pixels(np.asarray(PIXELS[0, 0])), PIXELS[:1, :1])


def test_one_image_for_several_labels_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="one image with its channels last"):
        Task("t", torch.zeros(100, 100, 3), [0, 1])


def test_normalised_images() -> None:
    assert torch.equal(pixels(denormalise(normalised(), MEAN, STD)), PIXELS)
    data = TensorDataset(normalised(), torch.tensor(LABELS))
    for source in (data, DataLoader(data, batch_size=3)):
        task = Task.from_dataset(source, "t", mean=MEAN, std=STD)
        assert torch.equal(pixels(task.images), PIXELS)
    with pytest.raises(InvalidInputError, match="call denormalise"):
        as_images(normalised())
    with pytest.raises(InvalidInputError, match=r"from .* instead of"):
        denormalise(normalised() * 3, MEAN, STD)
    with pytest.raises(InvalidInputError, match="do not have 1 channels"):
        denormalise(normalised(), [0.5], [0.5])


@pytest.mark.parametrize("images", [7, {"a": 1}, None])
def test_other_types_are_refused(images: Any) -> None:
    with pytest.raises(InvalidInputError, match="are not supported; pass a tensor"):
        as_images(images)


def test_missing_columns_are_named() -> None:
    frame = pd.DataFrame({"x": [1], "label": [2]})
    with pytest.raises(InvalidInputError, match="no image column found among x, label"):
        Task.from_dataset(frame, "t")
    with pytest.raises(InvalidInputError, match="there is no column 'z'; there are x, label"):
        Task.from_dataset(frame, "t", image="x", label="z")
