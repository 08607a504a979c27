"""Atomic writes, and access to folders whose content is not trusted."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from remembering.errors import RememberingError, StorageError

UNFINISHED = ".unfinished"
_TEMPORARY = re.compile(rf"\..+\.[0-9a-f]{{8}}{re.escape(UNFINISHED)}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a file",
}


def cache_dir() -> Path:
    """Return `$REMEMBERING_CACHE`, or `~/.cache/remembering`."""
    return Path(os.environ.get("REMEMBERING_CACHE") or Path.home() / ".cache" / "remembering")


def sha256(data: bytes) -> str:
    """Return the SHA-256 of some bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file atomically and durably: even a power loss leaves the old or the new one.

    Missing directories are created.

    Raises:
        StorageError: If the file cannot be written; an existing file is then unchanged.
    """
    folder = SafeFolder(path.parent)
    folder.create()
    folder.write(path.name, data)


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files that a killed writer left directly in a folder."""
    if folder.is_dir():
        SafeFolder(folder).remove_unfinished()


def problem_of(info: os.stat_result, *, directory: bool = False) -> str | None:
    """Return why an entry is not a plain file (or directory), or None if it is one."""
    expected = stat.S_IFDIR if directory else stat.S_IFREG
    if stat.S_IFMT(info.st_mode) != expected:
        return f"is {_KINDS.get(stat.S_IFMT(info.st_mode), 'a special file')}"
    if not directory and info.st_nlink > 1:
        return f"is a hard link (the file has {info.st_nlink} names)"
    return None


class SafeFolder:
    """A folder whose entries are reached without following links.

    A folder may come from an archive or a repository, which preserve links. Every access starts at
    the folder and opens one directory after the other relative to the previous one, so that
    nothing outside the folder is read, written or removed. Only plain directories and regular
    files with a single name are accepted. The path of the folder itself is the user's choice and
    may contain links.

    Entries are named by relative paths with "/" between the parts.

    Args:
        path: The folder; it need not exist yet.
    """

    def __init__(self, path: Path):
        self.path = Path(os.path.realpath(path))

    def create(self) -> None:
        """Create the folder and its missing parents, durably."""
        try:
            _make_directories(self.path)
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written ({error.strerror}); choose another folder"
            ) from error

    def stat(self, name: str) -> os.stat_result | None:
        """Return the status of an entry itself, or None if it does not exist."""
        directory, leaf = _split(name)
        with self._explained(name, "read"):
            try:
                with self._open_directory(directory) as parent:
                    return os.stat(leaf, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                return None

    def entries(self, name: str = "") -> dict[str, os.stat_result]:
        """Return the status of every entry of a directory; of a missing one, nothing."""
        with self._explained(name, "read"):
            try:
                with self._open_directory(name) as directory:
                    return dict(sorted(_listed(directory)))
            except FileNotFoundError:
                return {}

    def tree(self, name: str, leaves: Sequence[str]) -> dict[str, os.stat_result]:
        """Return the status of the entries of a directory and of some files below them, by path.

        Args:
            name: The directory; of a missing one, nothing is returned.
            leaves: Names of files that its subdirectories may have.
        """
        found = {}
        with (
            self._explained(name, "read"),
            contextlib.suppress(FileNotFoundError),
            self._open_directory(name) as directory,
        ):
            for entry, info in _listed(directory):
                found[f"{name}/{entry}"] = info
                if stat.S_ISDIR(info.st_mode):
                    for leaf in leaves:
                        path = f"{entry}/{leaf}"
                        with contextlib.suppress(FileNotFoundError):
                            status = os.stat(path, dir_fd=directory, follow_symlinks=False)
                            found[f"{name}/{path}"] = status
        return found

    def require_plain(self, name: str, *, directory: bool = False) -> None:
        """Raise StorageError if an entry exists that is not a plain file (or directory)."""
        info = self.stat(name)
        if info is not None:
            self._require(name, info, directory=directory)

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[int, int]]:
        """Open a regular file for reading; yields its descriptor and its size in bytes."""
        directory, leaf = _split(name)
        with self._explained(name, "read"), self._open_directory(directory) as parent:
            self._require(name, os.stat(leaf, dir_fd=parent, follow_symlinks=False))
            descriptor = os.open(leaf, _FILE, dir_fd=parent)
            try:
                info = os.fstat(descriptor)  # the entry may have been replaced meanwhile
                self._require(name, info)
                yield descriptor, info.st_size
            finally:
                os.close(descriptor)

    def read(self, name: str, *, size: int | None = None, limit: int | None = None) -> bytes:
        """Read a regular file.

        Args:
            name: The file.
            size: The size that it must have; checked before anything is read.
            limit: The largest size that is read.

        Raises:
            StorageError: If it does not exist, is not a plain file, or has another size.
        """
        with self.open(name) as (descriptor, found):
            if size is not None and found != size:
                raise StorageError(
                    f"{self.path / name} is not the file that was saved (it has {found} bytes "
                    f"instead of {size}); restore it from a copy"
                )
            if limit is not None and found > limit:
                raise StorageError(
                    f"{self.path / name} has {found} bytes, more than the {limit} that are accepted"
                )
            return read_all(descriptor, found)

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically and durably; missing directories below the folder are created."""
        directory, leaf = _split(name)
        with (
            self._explained(name, "written"),
            self._open_directory(directory, create=True) as parent,
        ):
            temporary = f".{leaf}.{secrets.token_hex(4)}{UNFINISHED}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o666, dir_fd=parent)
            try:
                try:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                os.rename(temporary, leaf, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            os.fsync(parent)

    def rename(self, name: str, new_name: str) -> None:
        """Rename an entry within its directory, durably; an existing file is replaced."""
        directory, leaf = _split(name)
        with self._explained(name, "renamed"), self._open_directory(directory) as parent:
            os.rename(leaf, _split(new_name)[1], src_dir_fd=parent, dst_dir_fd=parent)
            os.fsync(parent)

    def remove(self, name: str) -> None:
        """Remove a file if it exists; anything but a regular file is left alone."""
        directory, leaf = _split(name)
        with self._explained(name, "removed"):
            try:
                with self._open_directory(directory) as parent:
                    info = os.stat(leaf, dir_fd=parent, follow_symlinks=False)
                    if stat.S_ISREG(info.st_mode):
                        os.unlink(leaf, dir_fd=parent)
            except FileNotFoundError:
                return

    def remove_directory(self, name: str) -> None:
        """Remove a directory if it is empty."""
        directory, leaf = _split(name)
        with self._explained(name, "removed"), self._open_directory(directory) as parent:
            if not self.entries(name):
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(leaf, dir_fd=parent)

    def remove_unfinished(self, name: str = "") -> None:
        """Remove temporary files that a killed writer left in a directory."""
        for entry, info in self.entries(name).items():
            if stat.S_ISREG(info.st_mode) and is_unfinished(entry):
                self.remove(f"{name}/{entry}" if name else entry)

    @contextmanager
    def _open_directory(self, name: str, create: bool = False) -> Iterator[int]:
        """Open a directory below the folder, one level at a time, without following links."""
        descriptor = os.open(self.path, _DIRECTORY)
        reached = ""
        try:
            for part in _parts(name):
                reached = f"{reached}/{part}" if reached else part
                if create:
                    _make_directory(part, descriptor)
                    os.fsync(descriptor)  # also if a process that was killed created it
                info = os.stat(part, dir_fd=descriptor, follow_symlinks=False)
                self._require(reached, info, directory=True)
                inner = os.open(part, _DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _require(self, name: str, info: os.stat_result, *, directory: bool = False) -> None:
        problem = problem_of(info, directory=directory)
        if problem:
            expected = "plain directories" if directory else "regular files with one name"
            raise StorageError(
                f"{self.path / name} {problem}; only {expected} are accepted here; remove it, or "
                "replace it by a copy of its content"
            )

    @contextmanager
    def _explained(self, name: str, verb: str) -> Iterator[None]:
        """Turn errors of the operating system into errors that name the file."""
        try:
            yield
        except RememberingError:
            raise
        except OSError as error:
            remedy = "; restore it from a copy" if verb == "read" else ""
            raise StorageError(
                f"{self.path / name} cannot be {verb}: {error.strerror or error}{remedy}"
            ) from error
        except MemoryError as error:  # a sparse file can be larger than any memory
            raise StorageError(f"{self.path / name} does not fit into memory") from error


def _listed(directory: int) -> Iterator[tuple[str, os.stat_result]]:
    """Iterate over the entries of an open directory, without following links."""
    with os.scandir(directory) as listing:
        for entry in listing:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                yield entry.name, entry.stat(follow_symlinks=False)


def is_unfinished(name: str) -> bool:
    """Return whether a name is one under which files are written before they are renamed."""
    return _TEMPORARY.fullmatch(name) is not None


def read_all(descriptor: int, size: int) -> bytes:
    """Read `size` bytes from the start of a file, or fewer if it has become shorter."""
    parts, position = [], 0
    while position < size:
        part = os.pread(descriptor, size - position, position)
        if not part:
            break
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def copy_of_map(view: memoryview) -> bytes:
    """Return the content of a mapped file, or only its start if the file has become shorter.

    The system copies it: reading memory here that has no file behind it would end the process.

    Raises:
        StorageError: If there is no space for a temporary file.
    """
    try:
        with tempfile.TemporaryFile(buffering=0) as file:
            size = 0
            try:
                while size < len(view):
                    size += os.write(file.fileno(), view[size:])
            except OSError as error:
                if error.errno != errno.EFAULT:
                    raise
            return read_all(file.fileno(), size)
    except OSError as error:
        raise StorageError(
            f"{len(view):,} bytes of a removed file cannot be copied to a temporary file "
            f"({error.strerror}); free space for it"
        ) from error


def _split(name: str) -> tuple[str, str]:
    directory, _, leaf = "/".join(_parts(name)).rpartition("/")
    return directory, leaf


def _parts(name: str) -> list[str]:
    parts = name.split("/") if name else []
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StorageError(f"{name!r} is not the name of a file within a folder")
    return parts


def _make_directories(path: Path) -> None:
    if path.is_dir():
        return
    if not path.parent.exists():
        _make_directories(path.parent)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _make_directory(path.name, descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(name: str, parent: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
