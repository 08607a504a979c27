"""Write the artifacts of a state that a folder does not have yet, and verify them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from remembering.adapters.peft_format import to_peft
from remembering.backbones.backbone import BUNDLED, Backbone
from remembering.errors import RememberingError, StorageError
from remembering.routing import Expert
from remembering.runtime.files import SafeFolder, problem_of, sha256
from remembering.state import ModelState, ReplayMemory
from remembering.storage.artifacts import (
    Artifact,
    StoredAdapter,
    StoredReplay,
    artifact_key,
    decode_adapter,
    decode_expert,
    decode_head,
    decode_memory,
    encode_expert,
    encode_head,
    encode_memory,
    read_verified,
)
from remembering.storage.manifest import (
    FEATURES_SUFFIX,
    SHARED_SUFFIX,
    VERSION,
    AdapterEntry,
    BackboneReference,
    FileEntry,
    Manifest,
    TaskEntry,
    artifact_path,
    files_of,
)
from remembering.storage.validation import check_state

Files = dict[str, bytes]
"""Content of the files of an artifact, by their name in its directory; "" for a single file."""


class ArtifactWriter:
    """Writes what is new and returns the manifest of the state.

    Args:
        state: The state.
        backbone: Its backbone.
        folder: Where to write.
        known: Artifacts of the state that are encoded and hashed already, by key.
        present: Files that the current manifest of the folder lists.
    """

    def __init__(
        self,
        state: ModelState,
        backbone: Backbone,
        folder: SafeFolder,
        known: Mapping[str, Artifact],
        present: Mapping[str, FileEntry],
    ):
        self.state, self.backbone, self.folder = state, backbone, folder
        self.known, self.present = known, present
        self.artifacts: dict[str, Artifact] = {}
        self.written: set[str] = set()
        self.listings: dict[str, dict[str, os.stat_result]] = {}

    def write(self) -> Manifest:
        """Write and verify everything but the manifest; return it without id and generation."""
        state = self.state
        adapters = {str(n): AdapterEntry(self._adapter(n), self._head(n)) for n in state.adapters}
        tasks = [
            TaskEntry(
                **vars(record),
                expert=self._expert("routers", record.number, state.router.experts[record.number]),
                memory=self._memory(record.number, state.memories.get(record.number)),
            )
            for record in state.tasks
        ]
        shared = state.router.shared
        shared_path = self._expert("shared", 0, shared) if shared else None
        feature_adapter = self._feature_adapter()
        try:
            check_state(state, self.backbone, lambda key: Path(self.artifacts[key].path))
        except StorageError as error:
            raise _not_saved(error) from error
        return Manifest(
            "remembering-model",
            VERSION,
            "",
            0,
            BackboneReference(
                _portable_name(self.backbone.name),
                self.backbone.image_size,
                self.backbone.fingerprint(),
                getattr(self.backbone, "revision", None),
            ),
            state.settings,
            state.next_number,
            shared_path,
            feature_adapter,
            tuple(tasks),
            adapters,
            {name: e for part in self.artifacts.values() for name, e in part.files.items()},
        )

    def _adapter(self, number: int) -> str:
        entry = self.state.adapters.entries[number]

        def encode() -> Files:
            if isinstance(entry, StoredAdapter):  # its files as they are
                return entry.files()
            return to_peft(self.state.adapters[number], self.backbone)

        return self._put("adapters", number, None, encode, self._check_adapter)

    def _feature_adapter(self) -> str | None:
        adapter = self.state.feature_adapter
        if adapter is None:
            return None
        return self._put(
            "features", 0, adapter, lambda: to_peft(adapter, self.backbone), self._check_adapter
        )

    def _check_adapter(self, files: Files, path: Path) -> None:
        decode_adapter(files, path, self.backbone)

    def _head(self, number: int) -> str:
        head = self.state.heads[number]
        return self._put(
            "heads",
            number,
            head,
            lambda: {"": encode_head(head)},
            lambda files, path: decode_head(files[""], path, self.backbone),
        )

    def _expert(self, kind: str, number: int, expert: Expert) -> str:
        return self._put(
            kind,
            number,
            expert,
            lambda: {"": encode_expert(expert)},
            lambda files, path: decode_expert(files[""], path, self.backbone.device),
        )

    def _memory(self, number: int, memory: ReplayMemory | None) -> str | None:
        if memory is None:
            return None
        source = memory.source
        return self._put(
            "memory",
            number,
            memory,
            lambda: {
                "": source.file() if isinstance(source, StoredReplay) else encode_memory(memory)
            },
            lambda files, path: decode_memory(files[""], path),
        )

    def _put(
        self,
        kind: str,
        number: int,
        value: object,
        encode: Callable[[], Files],
        check: Callable[[Files, Path], object],
    ) -> str:
        """Write an artifact unless it is there, verify what was written, and return its path."""
        key = artifact_key(kind, number)
        artifact = self.known.get(key)
        if artifact is None or artifact.value is not value or not self._is_present(artifact):
            files = encode()
            artifact = _named(kind, number, value, files)
            if not self._is_present(artifact):
                for name, data in zip(artifact.files, files.values(), strict=True):
                    self.folder.write(name, data)
                self.written.add(artifact.path)
                found = [read_verified(self.folder, n, e) for n, e in artifact.files.items()]
                try:
                    check(dict(zip(files, found, strict=True)), self.folder.path / artifact.path)
                except RememberingError as error:
                    raise _not_saved(error) from error
        self.artifacts[key] = artifact
        return artifact.path

    def _is_present(self, artifact: Artifact) -> bool:
        """Return whether the current manifest lists the files and they are there."""
        return all(
            self.present.get(name) == entry
            and (info := self._info(name)) is not None
            and problem_of(info) is None
            and info.st_size == entry.bytes
            for name, entry in artifact.files.items()
        )

    def _info(self, name: str) -> os.stat_result | None:
        directory, _, leaf = name.rpartition("/")
        if directory not in self.listings:  # one listing is faster than opening it for each file
            self.listings[directory] = self.folder.entries(directory)
        return self.listings[directory].get(leaf)


def _named(kind: str, number: int, value: object, files: Files) -> Artifact:
    directory, suffix = {
        "shared": ("routers", SHARED_SUFFIX),
        "features": ("adapters", FEATURES_SUFFIX),
    }.get(kind, (kind, ""))
    entries = [FileEntry(sha256(data), len(data)) for data in files.values()]
    digest = entries[0].sha256 if len(entries) == 1 else sha256(b"".join(files.values()))
    path = artifact_path(directory, number, digest, suffix)
    return Artifact(value, path, dict(zip(files_of(path), entries, strict=True)))


def _not_saved(error: RememberingError) -> StorageError:
    return StorageError(
        f"the model was not saved, because it could not be loaded again: {error}; the folder holds "
        "what it held before"
    )


def _portable_name(name: str) -> str:
    """Return the full path of a folder, so that the model loads from any working directory."""
    path = Path(name).expanduser()
    return str(path.resolve()) if name != BUNDLED and path.is_dir() else name
