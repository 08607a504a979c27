"""Atomic writes and access without following links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from remembering.errors import StorageError
from remembering.runtime.files import SafeFolder, remove_unfinished, write_atomic

pytestmark = pytest.mark.unit


def test_a_write_creates_missing_directories(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a" / "b" / "file", b"content")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"content"
    SafeFolder(tmp_path / "a").write("c/d/file", b"more")
    assert (tmp_path / "a" / "c" / "d" / "file").read_bytes() == b"more"


def test_new_directories_are_synced_in_their_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))  # noqa: PTH119, PTH115
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(tmp_path / "a" / "b" / "file", b"content")
    assert synced[:2] == [tmp_path.name, "a"]
    assert synced[-1] == "b"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomic(tmp_path / "file", b"old")

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="file cannot be written: No space left"):
        write_atomic(tmp_path / "file", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("file", b"old")]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "file").symlink_to(tmp_path / "target")
    write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "target").read_bytes() == b"precious"
    assert not (tmp_path / "file").is_symlink()


@pytest.mark.parametrize("name", ["../x", "{outside}", "a/../../x", "a//b", ".", "..", "a\0b"])
def test_names_outside_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "x", SafeFolder(tmp_path / "folder")
    outside.write_text("precious")
    folder.create()
    for use in (folder.read, folder.stat, folder.remove, lambda n: folder.write(n, b"")):
        with pytest.raises(StorageError, match="not the name of a file within a folder"):
            use(name.format(outside=outside))
    assert outside.read_text() == "precious"


def test_a_size_is_checked_before_anything_is_read(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2**40)  # sparse
    with pytest.raises(StorageError, match="1099511627776 bytes instead of 3"):
        SafeFolder(tmp_path).read("file", size=3)
    with pytest.raises(StorageError, match="more than the 100 that are accepted"):
        SafeFolder(tmp_path).read("file", limit=100)


def test_only_temporary_files_are_removed(tmp_path: Path) -> None:
    kept = [".unfinished", "file.unfinished", ".file.unfinished", ".file.0123ABCD.unfinished"]
    for name in [*kept, ".file.0123abcd.unfinished"]:
        (tmp_path / name).touch()
    remove_unfinished(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*kept}
    remove_unfinished(tmp_path / "missing")


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    folder = SafeFolder(tmp_path)
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    folder.write("a/b/file", b"content")
    folder.entries("a")
    for name in ("a/b/file", "a/b", "a/missing", "missing/file"):
        try:
            folder.read(name)
        except StorageError:
            continue
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
