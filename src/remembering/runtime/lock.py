"""A lock that lets one process at a time write to a folder."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from remembering.errors import StorageError
from remembering.runtime.files import SafeFolder, problem_of

NAME = ".lock"
WAIT_SECONDS = 0.2
"""A process that is just releasing the lock is waited for, but not one that is working."""
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_held: set[tuple[int, int, Path]] = set()


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a folder for writing.

    The lock ends with the process, however it ends. Readers need none: they always find the last
    complete state. The folder is created if it is missing, and removed again if nothing was put
    into it. A thread may take the lock again while it holds it, as a command that learns and then
    saves does. File systems without locks (ENOLCK) have no lock: writing goes on without.

    Raises:
        StorageError: If another process or thread holds the folder, or it cannot be written.
    """
    safe = SafeFolder(folder)
    key = (os.getpid(), threading.get_ident(), safe.path)  # a forked process holds nothing
    if key in _held:
        yield
        return
    created = not safe.path.exists()
    safe.create()
    lock = _acquire(safe)
    _held.add(key)
    try:
        yield
    finally:
        _held.discard(key)
        if os.getpid() == key[0]:
            # Removed while it is held: a process that opened it before notices, and opens anew.
            with contextlib.suppress(StorageError):  # a file that stays behind blocks nobody
                safe.remove(NAME)
            if lock is not None:
                lock.release()
            if created:
                with contextlib.suppress(OSError):
                    safe.path.rmdir()


def _acquire(safe: SafeFolder) -> FileLock | None:
    safe.require_plain(NAME)
    lock = FileLock(
        safe.path / NAME,
        timeout=WAIT_SECONDS,
        fallback_to_soft=False,
        on_acquired=_write_owner,
    )
    try:
        lock.acquire()
    except Timeout as error:
        raise StorageError(
            f"process {_owner(safe)} is writing to {safe.path}; wait until it is done, or choose "
            "another folder"
        ) from error
    except StorageError:
        raise
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise StorageError(
            f"{safe.path} cannot be written ({error.strerror}); choose another folder"
        ) from error
    return lock


def _write_owner(descriptor: int) -> None:
    """Write the number of this process to the lock file, for the message of the next one."""
    problem = problem_of(os.fstat(descriptor))  # the entry may have been replaced meanwhile
    if problem:
        raise StorageError(f"{NAME} {problem}; remove it")
    with contextlib.suppress(OSError):  # a full disk: the lock is held all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _owner(safe: SafeFolder) -> str:
    try:
        return str(int(safe.read(NAME, limit=20)))
    except (StorageError, ValueError):
        return "of unknown number"
