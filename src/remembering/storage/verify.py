"""Find what is wrong with a model folder, and what does not belong to it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from remembering.runtime.files import SafeFolder, problem_of
from remembering.storage.layout import kind_of
from remembering.storage.manifest import MANIFEST, parse_manifest, read_manifest_bytes
from remembering.storage.reader import damaged_files

_IGNORED = ".cache"  # downloads from the hub keep their records there


def verify(folder: Path) -> list[str]:
    """Return one sentence for each file that is damaged or does not belong to the model.

    Links, special files and unknown names do not belong to a model. Artifacts that a killed writer
    left behind are not reported; the next save removes them.

    Raises:
        StorageError: If the manifest itself cannot be read.
    """
    safe = SafeFolder(folder)
    while True:
        data = read_manifest_bytes(safe)
        manifest = parse_manifest(data, safe.path / MANIFEST)
        problems = [*damaged_files(safe, manifest).values()]
        problems += _foreign(safe)
        if not problems or read_manifest_bytes(safe) == data:
            return problems


def _foreign(folder: SafeFolder, directory: str = "") -> Iterator[str]:
    """Yield a sentence for each entry that this library did not write."""
    for name, info in folder.entries(directory).items():
        path = f"{directory}/{name}" if directory else name
        if path == _IGNORED and stat.S_ISDIR(info.st_mode):
            continue
        kind = kind_of(path)
        problem = "does not belong to a model"
        if kind is not None:
            problem = problem_of(info, directory=kind == "directory") or ""
        if problem:
            shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in path)
            yield f"{folder.path}/{shown} {problem}; remove it"
        elif kind == "directory":
            yield from _foreign(folder, path)
