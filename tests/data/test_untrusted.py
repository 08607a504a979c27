"""Images and data files are untrusted: no format outside the allow-list, no path followed."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image
from support import png

from remembering.data import decoding
from remembering.data.conversion import as_images
from remembering.data.decoding import decode_image, read_image
from remembering.data.sources import load
from remembering.data.task import Task
from remembering.errors import RememberingError

pytestmark = pytest.mark.integration

EPS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n"
    b"0 0 4 4 rectfill\nshowpage\n%%EOF\n"
)
FEATURES = datasets.Features(
    {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
)
ALL = torch.arange(4)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMEMBERING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `gs` that only records that it was started."""
    folder, canary = tmp_path / "bin", tmp_path / "canary"
    folder.mkdir()
    (folder / "gs").write_text(f"#!/bin/sh\ntouch {canary}\n")
    (folder / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    return canary


def rows(image: dict[str, Any] | None) -> dict[str, list[Any]]:
    """Four rows of which the last has the image in question."""
    good = [{"bytes": png(i), "path": None} for i in range(3)]
    return {"image": [*good, image], "label": [0, 1, 0, 1]}


def saved(kind: str, folder: Path, image: dict[str, Any] | None) -> Path:
    """The rows as Parquet files or as written by `save_to_disk`."""
    made = datasets.Dataset.from_dict(rows(image), features=FEATURES)
    folder.mkdir()
    if kind == "parquet":
        # pyarrow itself, because `to_parquet` replaces paths by the bytes behind them.
        import pyarrow.parquet as pq

        for part in ("train", "test"):
            pq.write_table(made.data.table, folder / f"{part}-00000.parquet")
    else:
        datasets.DatasetDict(train=made, test=made).save_to_disk(folder)
    return folder


STORED = ["parquet", "save_to_disk"]


@pytest.mark.parametrize("kind", STORED)
def test_eps_in_a_dataset_is_refused_by_its_format(
    kind: str, tmp_path: Path, ghostscript: Path
) -> None:
    source = load(str(saved(kind, tmp_path / "data", {"bytes": EPS, "path": None})))
    with pytest.raises(RememberingError, match=r"row 3 .*format"):
        list(source.train.images[ALL])
    assert not ghostscript.exists()


@pytest.mark.parametrize("kind", STORED)
def test_a_path_in_stored_data_is_never_followed(kind: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(77))
    folder = tmp_path / "data"
    made = datasets.Dataset.from_dict(rows({"bytes": None, "path": str(secret)}), features=FEATURES)
    folder.mkdir()
    if kind == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(made.data.table, folder / "train-0.parquet")
        pq.write_table(made.data.table, folder / "test-0.parquet")
    else:
        # What `save_to_disk` would write if it did not replace paths by the bytes behind them.
        datasets.DatasetDict(train=made, test=made).save_to_disk(folder)
        for path in folder.glob("*/*.arrow"):
            with datasets.arrow_writer.ArrowWriter(path=str(path), features=FEATURES) as writer:
                writer.write_table(made.data.table)
    source = load(str(folder))
    with pytest.raises(RememberingError, match=r"row 3 .*path"):
        list(source.train.images[ALL])


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("prefix", ["http", "zip://a.png::http"])
def test_a_url_in_stored_data_reaches_no_network(kind: str, prefix: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        url = f"{prefix}://127.0.0.1:{server.getsockname()[1]}/a.png"
        image = {"bytes": b"not an image", "path": url}
        source = load(str(saved(kind, tmp_path / "data", image)))
        with pytest.raises(RememberingError, match="row 3"):
            list(source.train.images[ALL])
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    source = load(str(saved("parquet", tmp_path / "data", None)))
    with pytest.raises(RememberingError, match=r"row 3 .*no image"):
        list(source.train.images[ALL])


def test_a_url_in_a_dataset_of_the_user_is_refused() -> None:
    image = {"bytes": None, "path": "http://127.0.0.1:9/a.png"}
    made = datasets.Dataset.from_dict(rows(image), features=FEATURES)
    with pytest.raises(RememberingError, match=r"row 3 .*http://127"):
        list(Task.from_dataset(made, "t").images[ALL])
    with pytest.raises(RememberingError, match="http://127"):
        Task.from_dataset(made.to_iterable_dataset(), "t")


def test_a_local_file_in_a_dataset_of_the_user_is_read(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for i in range(2):
            Image.new("L", (4, 4), 50 + i).save(tmp_path / "pets" / label / f"{i}.png")
    made = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "pets"), split="train")
    images = Task.from_dataset(made, "pets").images[ALL]
    assert sorted(int(image.max()) for image in images) == [50, 50, 51, 51]


@pytest.mark.parametrize("kind", STORED)
def test_only_the_columns_in_use_are_decoded(kind: str, tmp_path: Path, ghostscript: Path) -> None:
    """Another image column, or a label column that claims to hold images, is not decoded."""
    wide = datasets.Features({**FEATURES, "other": datasets.Image()})
    image = {"bytes": png(), "path": None}
    columns = rows(image) | {"other": [{"bytes": EPS, "path": None}] * 4}
    made = datasets.Dataset.from_dict(columns, features=wide)
    folder = tmp_path / "wide"
    if kind == "parquet":
        folder.mkdir()
        for part in ("train", "test"):
            made.to_parquet(folder / f"{part}-0.parquet")
    else:
        datasets.DatasetDict(train=made, test=made).save_to_disk(folder)
    assert len(list(load(str(folder)).train.images[ALL])) == 4
    hostile = datasets.Features({"image": datasets.Image(), "label": datasets.Image()})
    columns = {"image": [image] * 4, "label": [{"bytes": EPS, "path": None}] * 4}
    made = datasets.Dataset.from_dict(columns, features=hostile)
    datasets.DatasetDict(train=made, test=made).save_to_disk(tmp_path / "hostile")
    with pytest.raises(RememberingError, match="column 'label'"):
        load(str(tmp_path / "hostile"))
    assert not ghostscript.exists()


def test_a_script_beside_the_data_is_not_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = saved("parquet", tmp_path / "data", {"bytes": png(), "path": None})
    for name in ("data.py", "parquet.py", "dataset.py"):
        (folder / name).write_text(f"import pathlib; pathlib.Path({str(canary)!r}).touch()")
    code = "import sys; from remembering.data.sources import load; load(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, "."], cwd=folder, input="y\n" * 9, text=True, timeout=60
    )
    assert done.returncode == 0
    assert not canary.exists()


@pytest.mark.parametrize("depth", [100_000])
def test_deeply_nested_metadata_is_a_clear_error(depth: int, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    deep = b'{"info": {"features": ' + b"[" * depth
    table = pa.table({"label": [0]}).replace_schema_metadata({"huggingface": deep})
    for name in ("train-0.parquet", "test-0.parquet"):
        pq.write_table(table, tmp_path / name)
    for name in (str(tmp_path), "mnist"):
        with pytest.raises(RememberingError, match=r"cannot be read|damaged"):
            load(name, tmp_path if name == "mnist" else None)
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "state.json").write_bytes(deep)
    with pytest.raises(RememberingError, match="cannot be read"):
        load(str(disk))


# Only regular files of a sensible size are opened.


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket is limited to 107 bytes
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def device(path: Path) -> None:
    """Create a node without a device behind it."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    except OSError:
        pytest.skip("device nodes cannot be created here")


SPECIAL = [fifo, unix_socket, device]


def in_time(call: Callable[[], Any]) -> None:
    """Run `call` in a thread: a blocked reader must not block the tests."""
    found: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "blocked"
    assert found, "accepted"
    assert isinstance(found[0], RememberingError)
    assert "not a regular file" in str(found[0])


@pytest.mark.parametrize("make", SPECIAL)
def test_special_files_are_refused_as_images(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "x.png")
    in_time(lambda: read_image(tmp_path / "x.png"))
    in_time(lambda: list(as_images([tmp_path / "x.png"])[torch.tensor([0])]))


@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("mnist", "train-images-idx3-ubyte"),
        ("mnist", "train-images-idx3-ubyte.gz"),
        ("mnist", "train-00000-of-00001.parquet"),
        ("cifar10", "data_batch_1"),
        ("folder", "train-00000-of-00001.parquet"),
        ("folder", "state.json"),
    ],
)
def test_special_files_are_refused_as_data(
    make: Callable[[Path], None], dataset: str, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    make(folder / name)
    if dataset == "folder":
        in_time(lambda: load(str(folder)))
    else:
        in_time(lambda: load(dataset, folder))


def test_a_link_to_an_image_is_followed(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png())
    (tmp_path / "link.png").symlink_to(tmp_path / "x.png")
    assert int(read_image(tmp_path / "link.png").max()) == 9


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(png())
    os.truncate(path, decoding.MAX_BYTES + 1)  # sparse: takes no space
    start = time.monotonic()
    with pytest.raises(RememberingError, match=r"x\.png has .* bytes"):
        read_image(path)
    assert time.monotonic() - start < 1
    with pytest.raises(RememberingError, match=r"row 0 has .* bytes"):
        decode_image(bytes(decoding.MAX_BYTES + 1), "row 0")


def test_an_idx_header_that_claims_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**31, 2**31)
    import gzip

    for name in ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"):
        folder = tmp_path / name
        folder.mkdir()
        for part in ("train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
            (folder / f"{part}-ubyte").write_bytes(header)
        (folder / name).write_bytes(gzip.compress(header) if name.endswith("gz") else header)
        with pytest.raises(RememberingError, match=f"{name} is damaged"):
            load("mnist", folder)


# The number of pixels is checked against our own limit, without touching the global filters.


def bomb(side: int) -> bytes:
    """A valid grey PNG of this side: a kilobyte or so per million pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    data = zlib.compressobj(1)
    row = bytes(side + 1)
    body = b"".join(data.compress(row) for _ in range(side)) + data.flush()
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [9500, 14000])
def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded(side: int) -> None:
    content, start = bomb(side), time.monotonic()
    with pytest.raises(RememberingError, match="pixels"):
        decode_image(content, "row 0")
    assert time.monotonic() - start < 0.5


def test_the_limit_does_not_depend_on_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(RememberingError, match="pixels"):
        decode_image(bomb(9500), "row 0")


def test_reading_leaves_the_warning_filters_alone(tmp_path: Path) -> None:
    """`warnings.catch_warnings` replaces global state: not for code that runs in threads."""
    (tmp_path / "x.png").write_bytes(png())
    seen: list[Any] = []
    real = Image.open

    def watched(*arguments: Any, **options: Any) -> Any:
        seen.append(list(warnings.filters))
        return real(*arguments, **options)

    before = list(warnings.filters)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "open", watched)
        read_image(tmp_path / "x.png")
    assert seen == [before]


@pytest.mark.parametrize("content", [b"DDS \x7c\0\0\0" + b"\xff" * 200, EPS, b"", b"hello"])
def test_other_formats_are_refused(content: bytes, ghostscript: Path) -> None:
    with pytest.raises(RememberingError, match=r"row 0 .*format"):
        decode_image(content, "row 0")
    assert not ghostscript.exists()


def test_a_batch_is_decoded_one_image_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large images are dropped as soon as the next one is decoded."""
    import gc

    from remembering.data import images
    from remembering.data.images import ImageFiles, joined, subset

    monkeypatch.setattr(images, "CACHE_BYTES", 0)
    side = 300
    paths = []
    for i in range(6):
        Image.fromarray(np.full((side, side, 3), i, np.uint8)).save(tmp_path / f"{i}.png")
        paths.append(tmp_path / f"{i}.png")

    def alive() -> int:
        gc.collect()
        return sum(
            type(thing) is torch.Tensor and thing.numel() == 3 * side * side
            for thing in gc.get_objects()
        )

    files = ImageFiles(paths)
    for sequence in (files, subset(files, torch.arange(5)), joined([files, ImageFiles(paths)])):
        most = 0
        for i, image in enumerate(sequence[torch.arange(5)]):
            assert int(image.max()) == i
            most = max(most, alive())
        assert most <= 2


def stream() -> Iterator[dict[str, Any]]:
    for i, image in enumerate([png(), png(), EPS, png()]):
        yield {"image": {"bytes": image, "path": None}, "label": i % 2}


def test_eps_in_a_streaming_dataset_is_refused_by_its_format(ghostscript: Path) -> None:
    made = datasets.IterableDataset.from_generator(stream, features=FEATURES)
    task = Task.from_dataset(made, "t")
    with pytest.raises(RememberingError, match=r"row 2 .*format"):
        list(task.images[ALL])
    assert not ghostscript.exists()
