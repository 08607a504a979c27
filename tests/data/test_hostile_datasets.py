"""Data sets whose files can be parsed but make no sense: one sentence, and no crash."""

from __future__ import annotations

import io
import itertools
import json
import struct
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from support import forked, png

from remembering.data.decoding import decode_image
from remembering.data.sources import load
from remembering.errors import RememberingError

pytestmark = pytest.mark.unit
FEATURES = datasets.Features(
    {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMEMBERING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A data set as written by `save_to_disk`."""
    images = [{"bytes": png(value), "path": None} for value in range(4)]
    made = datasets.Dataset.from_dict({"image": images, "label": [0, 1, 0, 1]}, features=FEATURES)
    made.save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def use(folder: Path) -> None:
    """Read every image of a data set."""
    source = load(str(folder))
    for part in (source.train, source.test):
        for image in part.images[torch.arange(len(part))]:
            assert image.dtype == torch.uint8


@pytest.mark.parametrize("names", [["cat", False], ["cat", 7], ["cat", ["x"]], ["cat", None]])
def test_class_names_must_be_strings(names: Any, saved: Path) -> None:
    path = saved / "dataset_info.json"
    info = json.loads(path.read_text())
    info["features"]["label"]["names"] = names
    path.write_text(json.dumps(info))
    with pytest.raises(RememberingError, match=r"label|cannot be read"):
        use(saved)


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([0, 2**40], pa.int64()),
        pa.array([0, 2**63 - 1], pa.int64()),
        pa.array([0, 2**64 - 1], pa.uint64()),
        pa.array([0, -1], pa.int8()),
        pa.array([False, True]),
        pa.array([0.0, 1.5]),
        pa.array([b"\xff", b"\xfe"]),
    ],
    ids=lambda labels: f"{labels.type} {labels[1]}",
)
def test_labels_out_of_range_are_refused(labels: pa.Array, tmp_path: Path) -> None:
    """Counting the images of label 2^40 would take eight terabytes."""
    folder = tmp_path / "data"
    folder.mkdir()
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = pa.array([{"bytes": png(side=28), "path": None}] * 6, kind)
    kinds = {"image": {"_type": "Image"}, "label": {"_type": "Value", "dtype": str(labels.type)}}
    metadata = {"huggingface": json.dumps({"info": {"features": kinds}})}
    table = pa.table({"image": images, "label": pa.concat_arrays([labels] * 3)})
    for part in ("train", "test"):
        pq.write_table(table.replace_schema_metadata(metadata), folder / f"{part}-0.parquet")
    with pytest.raises(RememberingError, match=r"label"):
        load("mnist", folder)


def test_strings_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = pa.array([{"bytes": png(side=28), "path": None}] * 6, kind)
    names = pa.array([b"cat", b"d\xffg"] * 3, pa.binary()).view(pa.string())
    kinds = {"image": {"_type": "Image"}, "label": {"_type": "Value", "dtype": "string"}}
    metadata = {"huggingface": json.dumps({"info": {"features": kinds}})}
    table = pa.table({"image": images, "label": names}).replace_schema_metadata(metadata)
    for part in ("train", "test"):
        pq.write_table(table, folder / f"{part}-0.parquet")
    for name, data in (("mnist", folder), (str(folder), None)):
        with pytest.raises(RememberingError, match=r"UTF8|UTF-8|utf-8"):
            load(name, data)


@pytest.mark.parametrize(
    "offsets",
    [(0, 1, 2, 3, 2**31 - 1), (0, 2**30, 9, 9, 9), (-(2**31), 0, 1, 2, 3), (2**29,) * 5],
    ids=str,
)
def test_offsets_outside_the_file_are_not_followed(offsets: tuple[int, ...], saved: Path) -> None:
    """In a process of its own: reading the memory they point to would kill it."""
    path = next(saved.glob("*.arrow"))
    data = path.read_bytes()
    sizes = [len(png(value)) for value in range(4)]
    stored = struct.pack("<5i", *itertools.accumulate(sizes, initial=0))
    assert data.count(stored) == 1
    path.write_bytes(data.replace(stored, struct.pack("<5i", *offsets)))
    status, message = forked(lambda: use(saved))
    assert (status, "cannot be read" in message) == (1, True), message
    assert message.startswith("InvalidFileError")


def test_a_jpeg_2000_image_may_have_fewer_pixels() -> None:
    """Three gigabytes were needed for 81 million pixels in a file of one kilobyte."""
    file = io.BytesIO()
    Image.new("L", (5000, 5000)).save(file, "JPEG2000")
    assert len(file.getvalue()) < 10_000
    with pytest.raises(RememberingError, match="row 0 has more than 22,369,621 pixels"):
        decode_image(file.getvalue(), "row 0")
