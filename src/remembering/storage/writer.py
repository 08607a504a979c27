"""Save a state to a folder, atomically.

An artifact is named by its content and never rewritten. A save adds new artifacts, verifies them,
replaces the manifest, keeps the one before as the previous one, and then removes what neither
manifest lists. Whenever a process dies, the folder holds the state before or the state after.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.errors import RememberingError, StorageError
from remembering.routing.share import Share
from remembering.runtime.files import SafeFolder, is_unfinished, problem_of, sha256
from remembering.runtime.lock import only_writer
from remembering.state import ModelState
from remembering.storage.artifact_writer import ArtifactWriter
from remembering.storage.artifacts import StoredAdapter, StoredShare, artifact_key
from remembering.storage.layout import in_use
from remembering.storage.manifest import (
    DIRECTORIES,
    MANIFEST,
    MAX_BYTES,
    PREVIOUS,
    REPLACED,
    Manifest,
    check_manifest,
    files_of,
    is_artifact_name,
    parse_manifest,
    read_manifest,
    read_manifest_bytes,
)
from remembering.storage.saved import SavedModel


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
        for name in (MANIFEST, PREVIOUS, REPLACED):
            safe.require_plain(name)
        for name in DIRECTORIES:
            safe.require_plain(name, directory=True)
        before, current = _replaceable(safe, saved, overwrite)
        _complete(safe, before)
        writer = ArtifactWriter(
            state, backbone, safe, saved.artifacts, current.files if current else {}
        )
        manifest = writer.write()
        related = sha256(before) in saved.ancestors
        if current is not None and (related or current.model_id == saved.model_id):
            manifest = replace(manifest, model_id=current.model_id, generation=current.generation)
        previous = None
        if manifest != current:
            manifest = replace(
                manifest,
                model_id=saved.model_id or manifest.model_id or sha256(manifest.encode())[:32],
                generation=max(saved.generation, manifest.generation) + 1,
            )
            data = manifest.encode()
            check_manifest(manifest, current, safe.path / MANIFEST)
            saved.ancestors.add(sha256(data))
            if current is not None:
                safe.write(REPLACED, before)
                previous = current
            safe.write(MANIFEST, data)
            _complete(safe, data)
        else:  # nothing has changed
            data = before
            saved.ancestors.add(sha256(data))
        _remove_unlisted(safe, manifest, previous or _previous(safe), writer)
        artifacts = writer.artifacts
        state = _with_stored_shares(state, safe, manifest)
        for number, share in state.shares.items():
            key = artifact_key("shares", number)
            artifacts[key] = replace(artifacts[key], value=share)
        if state.adapters.cache.max_bytes is not None:
            state = _with_sources(state, backbone, safe, manifest)
            for number, source in state.adapters.entries.items():
                key = artifact_key("adapters", number)
                artifacts[key] = replace(artifacts[key], value=source)
        after = replace(
            saved,
            model_id=manifest.model_id,
            generation=manifest.generation,
            artifacts=artifacts,
            manifest=manifest,
            digest=sha256(data),
        )
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
    if saved.manifest is not None and sha256(data) == saved.digest:
        return data, saved.manifest
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


def _complete(folder: SafeFolder, manifest: bytes) -> None:
    """Make the replaced manifest the previous one, if `manifest` has replaced it."""
    if folder.stat(REPLACED) is not None:
        if folder.read(REPLACED, limit=MAX_BYTES) != manifest:
            folder.rename(REPLACED, PREVIOUS)
        else:
            folder.remove(REPLACED)


def _previous(folder: SafeFolder) -> Manifest | None:
    """Return the previous manifest, unless there is none that can be read."""
    with contextlib.suppress(StorageError):
        return read_manifest(folder.path, PREVIOUS)
    return None


def _remove_unlisted(
    folder: SafeFolder, manifest: Manifest, previous: Manifest | None, writer: ArtifactWriter
) -> None:
    """Remove artifacts that neither this manifest nor the previous one lists.

    Only names that this library gives to files are removed, and only plain files.
    """
    listed = {path for path, *_ in manifest.artifacts()}
    if previous is not None:
        listed |= {path for path, *_ in previous.artifacts()}
    for path in writer.found:
        directory, _, name = path.partition("/")
        if path not in listed and (is_artifact_name(directory, name) or is_unfinished(name)):
            _remove_artifact(folder, path)
    for directory in ("", *(path for path in writer.written if path.startswith("adapters/"))):
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


def _with_stored_shares(state: ModelState, folder: SafeFolder, manifest: Manifest) -> ModelState:
    """Return the state with shares that are read from the folder on demand.

    They are large and hardly ever needed, so they do not stay in memory.
    """
    shares = dict(state.shares)
    for task in manifest.tasks:
        if task.share and not isinstance(shares[task.number].source, StoredShare):
            shares[task.number] = Share(StoredShare(folder, task.share, manifest))
    return replace(state, shares=shares)


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
