"""One writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remembering.errors import RememberingError

NAME = ".lock"
_held: set[Path] = set()


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a folder for writing; a second writer is refused, and told who holds it.

    The lock belongs to the process (flock), so it ends with it, however it ends. Readers need none:
    they always find the last complete state. The folder is made if it is missing, and removed again
    if nothing was put into it. Within a process the lock may be taken again, as a command that
    learns and then saves does; threads of one process must agree among themselves.
    """
    key = folder.resolve()
    if key in _held:
        yield
        return
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(folder)
    except OSError as error:
        raise RememberingError(
            f"{folder} cannot be written ({error.strerror}); choose another folder"
        ) from error
    _held.add(key)
    try:
        yield
    finally:
        _held.discard(key)
        # Removed while it is held: whoever opened it before sees that it is gone, and tries again.
        with contextlib.suppress(FileNotFoundError):
            (folder / NAME).unlink()
        os.close(descriptor)
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _acquire(folder: Path) -> int:
    path = folder / NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise RememberingError(
                f"process {owner or 'of unknown number'} is writing to {folder}; wait until it is "
                "done, or choose another folder"
            ) from error
        if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            except OSError:  # a full disk
                path.unlink()
                os.close(descriptor)
                raise
            return descriptor
        os.close(descriptor)
