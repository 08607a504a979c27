"""Find what is wrong with a model folder, and what does not belong to it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from remembering.adapters.peft_format import CONFIG_FILE, WEIGHTS_FILE
from remembering.learning.checkpoint import is_checkpoint
from remembering.runtime.files import SafeFolder, is_unfinished, problem_of
from remembering.runtime.lock import NAME as LOCK
from remembering.storage.hub import CARD
from remembering.storage.manifest import (
    DIRECTORIES,
    MANIFEST,
    PREVIOUS,
    is_artifact_name,
    parse_manifest,
    read_manifest_bytes,
)
from remembering.storage.reader import damaged_files

_FILES = {MANIFEST, PREVIOUS, LOCK, CARD, ".gitattributes"}
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
        kind = _kind(path)
        problem = "does not belong to a model"
        if kind is not None:
            problem = problem_of(info, directory=kind == "directory") or ""
        if problem:
            shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in path)
            yield f"{folder.path}/{shown} {problem}; remove it"
        elif kind == "directory":
            yield from _foreign(folder, path)


def _kind(path: str) -> Literal["file", "directory"] | None:
    """Return what this library writes under a path, if anything."""
    directory, *rest = path.split("/")
    name = path.rpartition("/")[2]
    if is_unfinished(name) or (not rest and (name in _FILES or is_checkpoint(name))):
        return "file"
    if not rest:
        return "directory" if name in DIRECTORIES else None
    if len(rest) == 1 and is_artifact_name(directory, name):
        return "directory" if directory == "adapters" else "file"
    return "file" if len(rest) == 2 and name in (CONFIG_FILE, WEIGHTS_FILE) else None
