"""Which images are accepted, how they are converted, and the errors for all others."""

from __future__ import annotations

import contextlib
import struct
import tempfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from remembering.data.conversion import as_images
from remembering.data.decoding import read_image
from remembering.data.folders import class_folders
from remembering.data.images import (
    ImageBatch,
    ImageFiles,
    ImageList,
    Joined,
    joined,
    subset,
)
from remembering.data.task import Task
from remembering.errors import RememberingError


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((5, 8, 9), (5, 1, 8, 9)),
        ((1, 8, 9), (1, 1, 8, 9)),
        ((5, 1, 8, 9), (5, 1, 8, 9)),
        ((5, 3, 8, 9), (5, 3, 8, 9)),
        ((5, 8, 9, 3), (5, 3, 8, 9)),
        ((5, 8, 9, 1), (5, 1, 8, 9)),
        ((5, 8, 9, 4), (5, 3, 8, 9)),
    ],
)
@pytest.mark.parametrize(
    "kind", [np.uint8, np.float32, np.float64, bool, np.int64, np.uint16, np.uint64, ">f4", ">i2"]
)
def test_stacks(shape: tuple[int, ...], wanted: tuple[int, ...], kind: Any) -> None:
    images = as_images(np.ones(shape, dtype=kind))
    assert isinstance(images, torch.Tensor)
    assert images.shape == wanted
    assert images.dtype == torch.uint8
    assert images[0, 0, 0, 0] == (1 if np.dtype(kind).kind in "ui" else 255)


@given(st.integers(0, 255))
def test_floats_keep_all_8_bits(value: int) -> None:
    images = as_images(torch.full((1, 2, 2), value / 255))
    assert bool((torch.as_tensor(images) == value).all())


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.full((2, 4, 4), float("nan")), "NaN or infinite, first in image 0"),
        (torch.full((2, 4, 4), 3.0), "floats must lie in 0..1"),
        (torch.full((2, 4, 4), -1), "outside 0..255"),
        (torch.zeros(2, 7, 8, 9), "no axis of 1, 3 or 4 channels"),
        (torch.zeros(2), "of shape .2,. are no stack"),
        (torch.zeros(2, 3, 0, 4), "have no pixels"),
        (torch.zeros(3, 28, 28), "one image of 3 channels or 3 grey images"),
        (torch.zeros(4, 28, 28), r"images\[None\] for one image, or images\[:, None\]"),
        (np.zeros((2, 4, 4), complex), "pixels are real numbers"),
        (np.full((2, 4, 4), 300, np.uint32), "outside 0..255"),
        ([Image.fromarray(np.full((4, 4), 7.0, np.float32))], "image 0 cannot be decoded"),
        ([object()], "image 0 is of type object"),
        (7, "type int are not supported"),
        ([np.zeros((2, 2, 2, 2))], "image 0 has shape"),
    ],
)
def test_what_is_refused(images: Any, message: str) -> None:
    with pytest.raises(RememberingError, match=message):
        as_images(images)


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I;16", "I", "F"]
)
def test_every_mode_of_pil(mode: str) -> None:
    grey = mode in ("1", "L", "LA") or mode[0] in "IF"
    image = Image.new(mode, (6, 4))
    assert as_images([image])[torch.tensor([0])][0].shape == (1 if grey else 3, 4, 6)


def test_sixteen_bits_are_scaled_not_cut(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 32896, 65535]], dtype=np.uint16)).save(tmp_path / "x.png")
    assert read_image(tmp_path / "x.png").flatten().tolist() == [0, 128, 255]
    Image.fromarray(np.array([[0, 200, 257]], dtype=np.uint16)).save(tmp_path / "dark.png")
    assert read_image(tmp_path / "dark.png").flatten().tolist() == [0, 1, 1]
    Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32)).save(tmp_path / "x.tiff")
    assert read_image(tmp_path / "x.tiff").flatten().tolist() == [0, 128, 255]
    for value in (2.0, float("nan")):
        Image.fromarray(np.array([[value]], dtype=np.float32)).save(tmp_path / "x.tiff")
        with pytest.raises(RememberingError, match="not all in"):
            read_image(tmp_path / "x.tiff")


def test_arrays_of_any_memory_layout() -> None:
    array = np.random.default_rng(0).integers(0, 256, (2, 5, 6, 3), dtype=np.uint8)
    mirrored = torch.as_tensor(as_images(array[:, :, ::-1]))
    assert torch.equal(mirrored, torch.as_tensor(as_images(array)).flip(3))
    with pytest.raises(RememberingError, match="type object"):
        as_images(np.array([[["a"]]], dtype=object))


def test_exif_rotation_is_undone(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.new("RGB", (6, 4)).save(tmp_path / "x.jpg", exif=exif)
    assert read_image(tmp_path / "x.jpg").shape == (3, 6, 4)


def test_an_animation_gives_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("L", (4, 4), value) for value in (10, 200)]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "x.gif").float().mean() < 20


def png_header(width: int, height: int) -> bytes:
    body = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + body
    return (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    )


def test_bad_files_are_named(tmp_path: Path) -> None:
    Image.effect_noise((64, 64), 50).save(tmp_path / "whole.png")
    bad = {
        "cut.png": (tmp_path / "whole.png").read_bytes()[:600],
        "text.png": b"hello",
        "empty.png": b"",
        "bomb.png": png_header(60000, 60000) + b"\0" * 100,
        "dds.png": b"DDS " + b"\x7c\0\0\0" + b"\xff" * 200,
        "script.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    }
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RememberingError, match=name):
            read_image(tmp_path / name)
    with pytest.raises(RememberingError, match="does not exist"):
        read_image(tmp_path / "none.png")
    with pytest.raises(RememberingError, match="is a folder"):
        read_image(tmp_path)


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + data)
        file.flush()
        with contextlib.suppress(RememberingError):
            assert read_image(Path(file.name)).dtype == torch.uint8


def test_class_folders(tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match="has no class folders"):
        class_folders(tmp_path)
    for name in ("cat", "dog", ".hidden"):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / name / "1.png")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    files, labels = class_folders(tmp_path)
    assert labels == ["cat", "dog"]
    assert len(files) == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(RememberingError, match="empty has no images"):
        class_folders(tmp_path)
    with pytest.raises(RememberingError, match="is not a folder"):
        class_folders(tmp_path / "none")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_joined_equals_concatenation(lengths: list[int], data: st.DataObject) -> None:
    parts = [torch.randint(0, 256, (n, 1, 2, 2), dtype=torch.uint8) for n in lengths]
    lazy = Joined([ImageList(list(part)) for part in parts])
    whole = torch.cat(parts)
    index = torch.tensor(data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1)))
    assert torch.equal(torch.stack(list(lazy[index])), whole[index])
    assert torch.equal(torch.as_tensor(joined(parts)), whole)
    assert torch.equal(
        torch.stack(list(subset(lazy, index)[torch.arange(len(index))])), whole[index]
    )


class TestImageBatch:
    def batch(self, cache_bytes: int) -> tuple[ImageBatch, list[int]]:
        """Four images of 12 bytes, and the positions at which they were decoded."""
        decoded: list[int] = []

        def decode(i: int) -> torch.Tensor:
            decoded.append(i)
            return torch.full((3, 2, 2), i, dtype=torch.uint8)

        return ImageBatch([partial(decode, i) for i in range(4)], cache_bytes), decoded

    def test_images_that_fit_the_budget_are_decoded_once(self) -> None:
        batch, decoded = self.batch(cache_bytes=24)
        assert [int(image.max()) for image in batch] == [0, 1, 2, 3]
        assert [int(image.max()) for image in batch] == [0, 1, 2, 3]
        assert decoded == [0, 1, 2, 3, 2, 3]

    def test_mapping_and_slicing_stay_lazy(self) -> None:
        batch, decoded = self.batch(cache_bytes=0)
        some = batch.map(lambda image: image + 10)[1:3]
        assert decoded == []
        assert [int(image.max()) for image in some] == [11, 12]
        assert decoded == [1, 2]
        assert int(batch[-1].max()) == 3

    def test_an_index_error_of_a_decoder_does_not_end_the_batch(self) -> None:
        def fail() -> torch.Tensor:
            raise IndexError("in the decoder")

        with pytest.raises(IndexError, match="in the decoder"):
            list(ImageBatch([fail]))


class TestTask:
    def test_labels_and_images_must_match(self) -> None:
        with pytest.raises(RememberingError, match="3 images but 2 labels"):
            Task("t", torch.zeros(3, 1, 4, 4), ["a", "b"])

    def test_labels_resolve_whether_a_stack_is_grey(self) -> None:
        grey = Task("t", torch.zeros(3, 8, 8), ["a", "b", "b"])
        assert torch.as_tensor(grey.images).shape == (3, 1, 8, 8)
        with pytest.raises(RememberingError, match="one image of 3 channels or 3 grey images"):
            Task("t", torch.zeros(3, 8, 8), ["a"])

    def test_empty(self) -> None:
        with pytest.raises(RememberingError, match="is empty"):
            Task("t", ImageFiles([]), [])

    def test_labels_of_one_kind(self) -> None:
        with pytest.raises(RememberingError, match="mixes string and integer"):
            Task("t", torch.zeros(2, 4, 4), ["a", 1])
        with pytest.raises(RememberingError, match=r"label 1 .* is 1\.5"):
            Task("t", torch.zeros(2, 4, 4), [1, 1.5])
        with pytest.raises(RememberingError, match="is True"):
            Task("t", torch.zeros(1, 4, 4), [True])

    def test_numpy_and_torch_labels_become_plain(self) -> None:
        for labels in (np.array([1, 2]), torch.tensor([1, 2]), [np.int64(1), 2]):
            assert Task("t", torch.zeros(2, 4, 4), labels).labels == (1, 2)

    def test_names_are_strings_and_labels_a_list(self) -> None:
        with pytest.raises(RememberingError, match="name of a task is 1"):
            Task(1, torch.zeros(2, 4, 4), [1, 2])  # type: ignore[arg-type]
        with pytest.raises(RememberingError, match="labels are None"):
            Task("t", torch.zeros(2, 4, 4), None)

    @pytest.mark.parametrize("kind", ["torch", "numpy"])
    def test_the_format_of_a_dataset_does_not_matter(self, kind: str) -> None:
        images = [Image.fromarray(np.full((4, 4), value, np.uint8)) for value in (0, 9)]
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        plain = datasets.Dataset.from_dict({"image": images, "label": [3, 5]}, features=features)
        task = Task.from_dataset(plain.with_format(kind), "t")
        assert task.labels == (3, 5)
        assert int(task.images[torch.tensor([1])][0].max()) == 9

    def test_several_labels_an_image_are_refused(self) -> None:
        columns = {"image": [Image.new("L", (4, 4))] * 2, "label": [[1, 2], [1]]}
        dataset = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
        with pytest.raises(RememberingError, match=r"has the label \[1, 2\]"):
            Task.from_dataset(dataset, "t")

    def test_labels_of_numpy_are_plain_strings(self) -> None:
        task = Task("t", torch.zeros(2, 4, 4), [np.str_("a"), "b"])
        assert [type(label) for label in task.classes] == [str, str]
