"""Learning from data on disk takes a bounded amount of memory, however much data there is."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from remembering.errors import RememberingError
from remembering.runtime.mmap_buffer import MmapBuffer

pytestmark = pytest.mark.reliability
MEGABYTE = 1024**2
IMAGES, SIDE, CLASSES = 3600, 128, 40
ALLOWED = 50 * MEGABYTE
GROWTH = 8 * MEGABYTE
# What is freed goes back to the system at once, so that what is measured is what is held.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}

# Measures memory that is the process's own (not that of mapped files, which the system takes back
# when it is short). What does not depend on the number of images is warmed up before. Prints how
# much a third of the images takes, and how much all of them take.
LEARN = """
import sys, threading
import datasets, torch
from remembering.inference import encoding
from remembering.runtime import mmap_buffer as rows
from remembering.config import ClassifierSettings, RouterSettings
from remembering.model import RememberingTransformer
from remembering.data.images import subset
from remembering.data.task import Task

torch.set_num_threads(1)
rows.MEMORY_BYTES = encoding.CACHE_BYTES = 4 * 1024**2

def own_memory():
    status = open("/proc/self/status").read().split()
    return 1024 * int(status[status.index("RssAnon:") + 1])

def model():
    layers = tuple(map(int, sys.argv[4].split()))
    router = RouterSettings(sys.argv[2], layers, sys.argv[3], epochs=1)
    settings = {"epochs": 1, "batch_size": 32, "first_layer": 5, "router": router}
    if sys.argv[2] == "autoencoder":
        settings |= {"adapters": "task", "classifier": ClassifierSettings("head")}
    return RememberingTransformer.from_backbone("bundled", **settings)

def peak_of(task):
    peak, done = own_memory(), threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        model().learn(task)
    finally:
        done.set()
        watcher.join()
    return peak

whole = Task.from_dataset(datasets.load_from_disk(sys.argv[1]), "large")
def first(count):
    return Task("small", subset(whole.images, torch.arange(count)), whole.labels[:count])

model().learn(first(128))
before = own_memory()
print(peak_of(first(len(whole) // 3)) - before, peak_of(whole) - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of noise on disk: nothing to compress."""
    import datasets

    def rows():  # type: ignore[no-untyped-def]
        random = np.random.default_rng(0)
        for i in range(IMAGES):
            pixels = random.integers(0, 128, (SIDE, SIDE, 3), dtype=np.uint8) + 3 * (i % CLASSES)
            file = io.BytesIO()
            Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG", compress_level=0)
            yield {"image": {"bytes": file.getvalue(), "path": None}, "label": i % CLASSES}

    folder = tmp_path_factory.mktemp("large")
    features = {"image": datasets.Image(), "label": datasets.Value("int64")}
    made = datasets.Dataset.from_generator(
        rows, features=datasets.Features(features), cache_dir=str(folder / "cache")
    )
    made.save_to_disk(str(folder / "saved"))
    return folder / "saved"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("router", ["gaussian moments 1 2", "autoencoder flat 0"])
def test_a_dataset_larger_than_memory_is_learned(router: str, large: Path, tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in large.glob("*.arrow"))
    assert size > 3 * ALLOWED  # as it is stored
    result = subprocess.run(
        [sys.executable, "-c", LEARN, str(large), *router.split(maxsplit=2)],
        env={**os.environ, "REMEMBERING_CACHE": str(tmp_path), **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    third, whole = map(int, result.stdout.split())
    assert whole < ALLOWED, f"memory grew by {whole / MEGABYTE:.0f} MiB"
    assert whole - third < GROWTH, f"{third / MEGABYTE:.0f}, then {whole / MEGABYTE:.0f} MiB"
    print(f"{third / MEGABYTE:.1f} MiB for a third, {whole / MEGABYTE:.1f} MiB for all")
    assert list(tmp_path.iterdir()) == []  # working files leave nothing behind


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_in_a_file_are_as_in_memory(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMEMBERING_CACHE", str(tmp_path / "made"))
    monkeypatch.setattr("remembering.runtime.mmap_buffer.MEMORY_BYTES", 100)
    wanted = torch.randn(40, 3, 5).to(dtype)
    rows = MmapBuffer(40)
    for index in torch.randperm(40).split(7):
        rows.put(index, wanted[index])
    assert torch.equal(rows.tensor, wanted)
    assert list((tmp_path / "made").iterdir()) == []


def test_no_room_for_rows_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("REMEMBERING_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("remembering.runtime.mmap_buffer.MEMORY_BYTES", 100)
    with pytest.raises(RememberingError, match="REMEMBERING_CACHE to a folder on another disk"):
        MmapBuffer(40).put(torch.arange(2), torch.zeros(2, 8))
