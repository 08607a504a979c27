"""Which files and directories belong to a model folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from remembering.learning.checkpoint import is_checkpoint
from remembering.runtime.files import SafeFolder, is_unfinished, problem_of
from remembering.runtime.lock import NAME as LOCK
from remembering.storage.hub import CARD
from remembering.storage.manifest import (
    ADAPTER_FILES,
    DIRECTORIES,
    MANIFEST,
    PREVIOUS,
    REPLACED,
    is_artifact_name,
)

FILES = {MANIFEST, PREVIOUS, REPLACED, LOCK, CARD, ".gitattributes"}


def kind_of(path: str) -> Literal["file", "directory"] | None:
    """Return what this library writes under a path, if anything."""
    directory, *rest = path.split("/")
    name = path.rpartition("/")[2]
    if is_unfinished(name) or (not rest and (name in FILES or is_checkpoint(name))):
        return "file"
    if not rest:
        return "directory" if name in DIRECTORIES else None
    if len(rest) == 1 and is_artifact_name(directory, name):
        return "directory" if directory == "adapters" else "file"
    return "file" if len(rest) == 2 and name in ADAPTER_FILES else None


def in_use(folder: Path) -> bool:
    """Return whether a folder without a manifest holds anything but an interrupted first save."""
    if not folder.is_dir():
        return False
    safe = SafeFolder(folder)

    def foreign(path: str, info: os.stat_result) -> bool:
        kind = kind_of(path)
        if (
            kind is None
            or path in FILES - {LOCK}
            or problem_of(info, directory=kind == "directory")
        ):
            return True
        return kind == "directory" and any(
            foreign(f"{path}/{name}", inner) for name, inner in safe.entries(path).items()
        )

    return any(foreign(name, info) for name, info in safe.entries().items())
