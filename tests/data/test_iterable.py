"""A streaming dataset is a task like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from PIL import Image
from support import make_task

from remembering.data.task import Task
from remembering.errors import RememberingError

FEATURES = datasets.Features(
    {
        "img": datasets.Image(),
        "label": datasets.ClassLabel(names=["a", "b"]),
        "other": datasets.Value("string"),
    }
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REMEMBERING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def rows() -> Iterator[dict[str, Any]]:
    task = make_task(0)
    for image, target in zip(task.images, task.targets.tolist(), strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        yield {"img": picture, "label": target, "other": "unused"}


def failing() -> Iterator[dict[str, Any]]:
    yield from rows()
    raise ConnectionError("the line is dead")


def nothing() -> Iterator[dict[str, Any]]:
    yield from ()


@pytest.mark.parametrize("features", [FEATURES, None])
def test_gives_the_images_and_labels_of_the_stream(
    features: datasets.Features | None, cache: Path
) -> None:
    stream = datasets.IterableDataset.from_generator(rows, features=features)
    task, wanted = Task.from_dataset(stream, "stream"), make_task(0)
    assert task.labels == (wanted.labels if features else tuple(wanted.targets.tolist()))
    order = torch.tensor([7, 0, 11])
    assert torch.equal(torch.stack(list(task.images[order])), wanted.images[order])
    assert list(cache.iterdir()) == []


def test_image_files_are_kept_as_they_came(tmp_path: Path) -> None:
    saved = tmp_path / "data.parquet"
    datasets.Dataset.from_generator(rows, features=FEATURES, cache_dir=str(tmp_path)).to_parquet(
        saved
    )
    files = {"train": str(saved)}
    stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    plain = datasets.load_dataset("parquet", data_files=files, split="train")
    raw = datasets.Image(decode=False)
    dataset = Task.from_dataset(stream.cast(FEATURES), "stream").images.dataset
    wanted = plain.cast_column("img", raw)["img"][:]
    assert dataset.cast_column("img", raw)["img"][:] == wanted


def test_images_known_by_address_are_read(tmp_path: Path) -> None:
    wanted = make_task(0)
    paths = [str(tmp_path / f"{i}.png") for i in range(len(wanted))]
    for path, row in zip(paths, rows(), strict=True):
        row["img"].save(path)
    columns = {"img": paths, "label": wanted.targets.tolist(), "other": [""] * len(paths)}
    stream = datasets.Dataset.from_dict(columns, features=FEATURES).to_iterable_dataset()
    task = Task.from_dataset(stream, "stream")
    assert torch.equal(torch.stack(list(task.images[torch.arange(12)])), wanted.images)


@pytest.mark.parametrize(
    ("generator", "features", "message"),
    [
        (failing, FEATURES, "task 'stream' could not be written .*the line is dead"),
        (nothing, None, "task 'stream' could not be written"),
        (nothing, FEATURES, "task 'stream' (is empty|could not be written)"),
    ],
)
def test_a_stream_that_fails_says_why(
    generator: Any, features: Any, message: str, cache: Path
) -> None:
    stream = datasets.IterableDataset.from_generator(generator, features=features)
    with pytest.raises(RememberingError, match=message):
        Task.from_dataset(stream, "stream")
    assert list(cache.iterdir()) == []


def test_several_parts_at_once_are_refused() -> None:
    part = datasets.Dataset.from_dict({"label": [0]})
    for parts in (datasets.DatasetDict(train=part), {"train": part}):
        with pytest.raises(RememberingError, match="such as its 'train' split"):
            Task.from_dataset(parts, "parts")  # type: ignore[arg-type]
