"""Save a state to a folder, atomically.

An artifact is named by its content and never rewritten. A save adds new artifacts, verifies them,
keeps the current manifest as the previous one, replaces the manifest, and then removes what neither
manifest lists. Whenever a process dies, the folder holds the state before or the state after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from remembering.adapters.lora import Adapter
from remembering.adapters.peft_format import to_peft
from remembering.backbones.backbone import BUNDLED, Backbone
from remembering.errors import RememberingError, StorageError
from remembering.routing import Expert
from remembering.runtime.files import SafeFolder, is_unfinished, problem_of, sha256
from remembering.runtime.lock import only_writer
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
from remembering.storage.layout import in_use
from remembering.storage.manifest import (
    DIRECTORIES,
    FEATURES_SUFFIX,
    MANIFEST,
    PREVIOUS,
    SHARED_SUFFIX,
    VERSION,
    AdapterEntry,
    BackboneReference,
    FileEntry,
    Manifest,
    TaskEntry,
    artifact_path,
    files_of,
    is_artifact_name,
    parse_manifest,
    read_manifest,
    read_manifest_bytes,
)
from remembering.storage.saved import SavedModel
from remembering.storage.validation import check_state

Files = dict[str, bytes]
"""Content of the files of an artifact, by their name in its directory; "" for a single file."""


def save(
    state: ModelState,
    backbone: Backbone,
    folder: Path,
    saved: SavedModel,
    *,
    overwrite: bool = False,
) -> tuple[ModelState, SavedModel]:
    """Write a state to a folder that is new, empty, or holds an earlier state of this model.

    Args:
        state: What to save.
        backbone: Its backbone.
        folder: Where to save it.
        saved: The last load or save of the model.
        overwrite: Whether to replace a model that this state does not descend from.

    Returns:
        The state, parts of which may now be read from the folder on demand, and the save.

    Raises:
        RememberingError: If the folder holds anything else, or cannot be written.
    """
    if state.observed:
        raise RememberingError(
            f"{state.observed} observed images wait to be learned and cannot be saved; call flush "
            "first, with discard=True if they cannot be learned"
        )
    if folder.exists() and not folder.is_dir():
        raise StorageError(f"{folder} is a file; give a folder for the model")
    with only_writer(folder):
        safe = SafeFolder(folder)
        for name in (MANIFEST, PREVIOUS):
            safe.require_plain(name)
        for name in DIRECTORIES:
            safe.require_plain(name, directory=True)
        before, current = _replaceable(safe, saved, overwrite)
        writer = _Writer(state, backbone, safe, saved.artifacts, current.files if current else {})
        manifest = writer.write()
        related = sha256(before) in saved.ancestors
        if current is not None and (related or current.model_id == saved.model_id):
            manifest = replace(manifest, model_id=current.model_id, generation=current.generation)
        if manifest != current:
            manifest = replace(
                manifest,
                model_id=saved.model_id or manifest.model_id or sha256(manifest.encode())[:32],
                generation=max(saved.generation, manifest.generation) + 1,
            )
            data = manifest.encode()
            parse_manifest(data, safe.path / MANIFEST)
            saved.ancestors.add(sha256(data))
            if current is not None:
                safe.write(PREVIOUS, before)
            safe.write(MANIFEST, data)
        else:  # nothing has changed
            saved.ancestors.add(sha256(before))
        _remove_unlisted(safe, manifest, writer.written)
        after = replace(
            saved,
            model_id=manifest.model_id,
            generation=manifest.generation,
            artifacts=writer.artifacts,
        )
        if state.adapters.cache.max_bytes is not None:
            state = _with_sources(state, backbone, safe, manifest)
        return state, after


def _replaceable(
    folder: SafeFolder, saved: SavedModel, overwrite: bool
) -> tuple[bytes, Manifest | None]:
    """Return the content of the manifest that a save may replace, and the manifest.

    The manifest is None if there is none, or if it is damaged or of another version.
    """
    path = folder.path / MANIFEST
    if folder.stat(MANIFEST) is None:
        if in_use(folder.path):
            raise StorageError(
                f"{folder.path} holds no model ({MANIFEST} is missing), but other files; give a "
                "new folder"
            )
        return b"", None
    data = read_manifest_bytes(folder)
    if overwrite or sha256(data) in saved.ancestors:
        try:
            return data, parse_manifest(data, path)
        except StorageError:
            return data, None
    current = parse_manifest(data, path)
    if sha256(data) == saved.incomplete:
        raise StorageError(
            f"damaged tasks were left out when this model was loaded from {folder.path}; saving it "
            "there would remove them for good: save to another folder, or with overwrite=True"
        )
    if current.model_id == saved.model_id:
        raise StorageError(
            f"a newer state (generation {current.generation}) was saved to {folder.path} since "
            "this model was loaded or saved there; load it again and learn on that, or save to "
            "another folder"
        )
    raise StorageError(
        f"{folder.path} holds another model; save to another folder, or with overwrite=True"
    )


class _Writer:
    """Writes the artifacts of a state that a folder does not have yet."""

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
        return all(
            self.present.get(name) == entry
            and (info := self.folder.stat(name)) is not None
            and problem_of(info) is None
            and info.st_size == entry.bytes
            for name, entry in artifact.files.items()
        )


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


def _remove_unlisted(folder: SafeFolder, manifest: Manifest, written: set[str]) -> None:
    """Remove artifacts that neither this manifest nor the previous one lists.

    Only names that this library gives to files are removed, and only plain files.
    """
    listed = {path for path, *_ in manifest.artifacts()}
    with contextlib.suppress(StorageError):  # none, or not readable
        listed |= {path for path, *_ in read_manifest(folder.path, PREVIOUS).artifacts()}
    for directory in DIRECTORIES:
        for name in folder.entries(directory):
            path = f"{directory}/{name}"
            if path not in listed and (is_artifact_name(directory, name) or is_unfinished(name)):
                _remove_artifact(folder, path)
    for directory in ("", *(path for path in written if path.startswith("adapters/"))):
        folder.remove_unfinished(directory)


def _remove_artifact(folder: SafeFolder, path: str) -> None:
    info = folder.stat(path)
    if info is None or problem_of(info, directory=True) is not None:
        folder.remove(path)
        return
    for name in files_of(path):
        folder.remove(name)
    folder.remove_unfinished(path)
    folder.remove_directory(path)


def _with_sources(
    state: ModelState, backbone: Backbone, folder: SafeFolder, manifest: Manifest
) -> ModelState:
    """Return the state with adapters that are read from the folder on demand."""
    adapters = state.adapters
    for number, entry in manifest.adapters.items():
        if isinstance(adapters.entries[int(number)], Adapter):
            source = StoredAdapter(folder, entry.folder, manifest, backbone)
            adapters = adapters.with_adapter(int(number), source)
    return replace(state, adapters=adapters)


def _portable_name(name: str) -> str:
    """Return the full path of a folder, so that the model loads from any working directory."""
    path = Path(name).expanduser()
    return str(path.resolve()) if name != BUNDLED and path.is_dir() else name
