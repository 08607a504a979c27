"""Only regular files of an accepted size are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remembering.errors import InvalidFileError
from remembering.runtime.reading import open_regular, read_json, read_regular


def test_regular_files_and_links_to_them_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file", 7) == read_regular(tmp_path / "link", 7) == b"content"


def test_other_files_are_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, message in {
        "pipe": "pipe is not a regular file",
        "none": "none does not exist",
        ".": "is a folder, not a file",
        "loop": "loop cannot be read",
    }.items():
        with pytest.raises(InvalidFileError, match=message):
            open_regular(tmp_path / name)


def test_a_pipe_that_replaces_a_checked_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch()
    real = os.open

    def swapped(*arguments: object) -> int:
        path.unlink()
        os.mkfifo(path)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(InvalidFileError, match="file is not a regular file"):
        open_regular(path)


def test_large_files_are_refused_before_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(InvalidFileError, match="has 7 bytes; at most 6 are accepted"):
        read_regular(tmp_path / "file", 6)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_invalid_json_is_a_clear_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InvalidFileError, match=r"x\.json is not valid JSON"):
        read_json(tmp_path / "x.json")
