"""Readers beside a writer, and disks that are full or read-only."""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import forked, learned, make_task, started

from remembering.backbones.backbone import Backbone
from remembering.errors import StorageError
from remembering.model import RememberingTransformer
from remembering.storage.manifest import is_model
from remembering.storage.verify import verify

pytestmark = pytest.mark.reliability
WRITES = 15


def test_readers_always_see_a_complete_state(backbone: Backbone, tmp_path: Path) -> None:
    """A writer learns one task after another and absorbs adapters, so that files go away."""
    folder = tmp_path / "model"

    def write() -> None:
        model = learned(backbone, 0, capacity=2, memory=4)
        for number in range(WRITES):
            model.learn(make_task(number, (f"a{number}", f"b{number}")))
            model.save(folder)

    wait = started(write)
    seen: list[int] = []
    deadline = time.monotonic() + 120
    while WRITES not in seen and time.monotonic() < deadline:
        if is_model(folder):
            model = RememberingTransformer.load(folder, backbone=backbone)
            assert len(model.state.adapters) == min(2, len(model.tasks))
            model.predict(make_task(0).images)
            seen.append(len(model.tasks))
    assert wait() == (0, "")
    assert seen == sorted(seen)
    assert len({*seen}) > 3, "the reader met the writer at work"


@pytest.mark.parametrize("limit", [0, 300, 2500])
def test_a_full_disk_leaves_the_old_state(limit: int, backbone: Backbone, tmp_path: Path) -> None:
    """No file may grow beyond a limit, as on a full disk."""
    folder = tmp_path / "model"
    learned(backbone, 2).save(folder)
    manifest = (folder / "manifest.json").read_bytes()
    model = RememberingTransformer.load(folder, backbone=backbone)
    model.learn(make_task(9, ("x", "y")))

    def save() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        model.save(folder)

    status, message = forked(save)
    assert status == 1
    assert "cannot be written: File too large" in message
    assert (folder / "manifest.json").read_bytes() == manifest
    assert verify(folder) == []
    assert not [path for path in folder.rglob(".*") if path.is_file()], "no leftovers"
    assert len(RememberingTransformer.load(folder).tasks) == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that holds 600 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small file system is not permitted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_fills_up_and_one_that_is_read_only(
    backbone: Backbone, small_disk: Path
) -> None:
    folder = small_disk / "model"
    model = learned(backbone, 2)
    model.save(folder)
    (small_disk / "filler").write_bytes(b"0" * (shutil.disk_usage(small_disk).free - 8192))
    model.learn(make_task(2, ("x", "y")))
    with pytest.raises(StorageError, match="cannot be written: No space left"):
        model.save(folder)
    assert verify(folder) == []
    assert len(RememberingTransformer.load(folder).tasks) == 2
    (small_disk / "filler").unlink()
    model.save(folder)
    assert len(RememberingTransformer.load(folder).tasks) == 3
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True, capture_output=True)
    with pytest.raises(StorageError, match="Read-only file system"):
        model.save(folder)
    assert len(RememberingTransformer.load(folder).tasks) == 3
