"""Read files that may come from anyone: regular files only, with a limit on their size."""

from __future__ import annotations

import json
import os
import stat
import tomllib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from remembering.errors import InvalidFileError

MAX_TEXT_BYTES = 64 * 1024**2


def require_regular(path: Path) -> None:
    """Raise unless `path` is a regular file or a link to one; does not open it.

    Raises:
        InvalidFileError: If it does not exist or is a folder, pipe, device or socket.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _unreadable(path, error) from error
    _require_regular_mode(path, mode)


def open_regular(path: Path, max_bytes: int | None = None) -> BinaryIO:
    """Open a regular file for reading; symbolic links are followed.

    Args:
        path: The file.
        max_bytes: Largest accepted size. If None, any size is accepted.

    Raises:
        InvalidFileError: If it cannot be opened, is not a regular file, or is too large.
    """
    # Checked before opening, because opening a device can have side effects, and once more after,
    # because the name may refer to another file by then.
    require_regular(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        file = os.fdopen(descriptor, "rb")
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        state = os.fstat(descriptor)
        _require_regular_mode(path, state.st_mode)
        if max_bytes is not None and state.st_size > max_bytes:
            raise InvalidFileError(
                f"{path} has {state.st_size:,} bytes; at most {max_bytes:,} are accepted"
            )
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file of at most `max_bytes`.

    Raises:
        InvalidFileError: If it cannot be read, is not a regular file, or is too large.
    """
    with open_regular(path, max_bytes) as file:
        try:
            return file.read(max_bytes)
        except OSError as error:
            raise _unreadable(path, error) from error


def read_json(path: Path) -> Any:
    """Parse a JSON file, which is compressed by gzip if its name ends in ".gz".

    Raises:
        InvalidFileError: If it is not a regular file, or not valid JSON (nesting that exceeds
            Python's recursion limit included).
    """
    return _parsed(path, json.loads, "JSON")


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        InvalidFileError: As `read_json`.
    """
    return cast(dict[str, Any], _parsed(path, tomllib.loads, "TOML"))


def _parsed(path: Path, parse: Callable[[str], Any], kind: str) -> Any:
    content = read_regular(path, MAX_TEXT_BYTES)
    try:
        content = _decompressed(content) if path.suffix == ".gz" else content
        return parse(content.decode())
    except (ValueError, RecursionError, zlib.error) as error:
        raise InvalidFileError(f"{path} is not valid {kind} ({error})") from error


def _decompressed(content: bytes) -> bytes:
    gzip = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    decompressed = gzip.decompress(content, MAX_TEXT_BYTES)
    if not gzip.eof or gzip.unused_data:
        raise ValueError(f"not one gzip stream of at most {MAX_TEXT_BYTES:,} bytes of text")
    return decompressed


def _require_regular_mode(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise InvalidFileError(f"{path} is a folder, not a file")
    if not stat.S_ISREG(mode):
        raise InvalidFileError(f"{path} is not a regular file but a pipe, device or socket")


def _unreadable(path: Path, error: OSError) -> InvalidFileError:
    if isinstance(error, FileNotFoundError):
        return InvalidFileError(f"{path} does not exist")
    return InvalidFileError(f"{path} cannot be read ({error.strerror or error})")
