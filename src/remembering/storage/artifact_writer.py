"""Write the artifacts of a state: encode what is new, write it, and verify what was written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from remembering.adapters.bank import AdapterSource
from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.adapters.peft_format import to_peft
from remembering.backbones.backbone import BUNDLED, Backbone
from remembering.errors import RememberingError, StorageError
from remembering.routing import Expert, Router
from remembering.routing.domain import Domain
from remembering.routing.share import Share
from remembering.runtime.files import SafeFolder, problem_of, sha256
from remembering.state import ModelState, ReplayMemory, TaskRecord
from remembering.storage.artifacts import (
    Artifact,
    StoredAdapter,
    StoredReplay,
    StoredShare,
    artifact_key,
    decode_adapter,
    decode_expert,
    decode_head,
    decode_memory,
    decode_share,
    encode_expert,
    encode_head,
    encode_memory,
    encode_share,
    read_verified,
)
from remembering.storage.manifest import (
    ADAPTER_FILES,
    DIRECTORIES,
    SHARED_SUFFIX,
    VERSION,
    AdapterEntry,
    BackboneReference,
    FileEntry,
    Manifest,
    ReferenceEntry,
    TaskEntry,
    artifact_path,
    files_of,
)
from remembering.storage.validation import check_state

Files = dict[str, bytes]
"""Content of the files of an artifact, by their name in its directory; "" for a single file."""


class ArtifactWriter:
    """Writes the artifacts of a state that a folder does not have yet.

    Args:
        state: The state.
        backbone: Its backbone.
        folder: Where to write.
        known: Artifacts that are encoded and hashed already, by key.
        present: The files that the current manifest of the folder lists.

    Attributes:
        artifacts: Artifacts of the state, by key.
        found: What was in the folder before, by path.
        written: Paths of the artifacts that were written.
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
        self.found: dict[str, os.stat_result] = {}
        for directory in DIRECTORIES:
            self.found |= folder.tree(directory, ADAPTER_FILES)

    def write(self) -> Manifest:
        """Write and verify everything but the manifest; return it without id and generation.

        What was verified when it was loaded or saved, and has not changed, is not checked again.
        """
        state = self.state
        adapters = {str(number): self._adapter_entry(number) for number in state.adapters}
        tasks = [self._task_entry(task) for task in state.tasks]
        shared = self._shared("routers", state.router, 0) if state.router.shared else None
        try:
            check_state(
                state,
                self.backbone,
                lambda key: Path(self.artifacts[key].path),
                lambda key: self.artifacts[key] is not self.known.get(key),
            )
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
            shared,
            tuple(tasks),
            adapters,
            {name: e for part in self.artifacts.values() for name, e in part.files.items()},
        )

    def _task_entry(self, task: TaskRecord) -> TaskEntry:
        state, number = self.state, task.number
        classifier = state.classifiers.get(task.adapter)
        reference = state.references.get(task.adapter)
        return TaskEntry(
            **vars(task),
            expert=self._expert("routers", state.router, number),
            classifier=self._expert("classifiers", classifier, number) if classifier else None,
            reference=(
                self._expert("references", reference.classifier, number) if reference else None
            ),
            memory=self._memory(number, state.memories.get(number)),
            share=self._share(number, state.shares.get(number)),
        )

    def _adapter_entry(self, number: int) -> AdapterEntry:
        state = self.state
        classifier, domain = state.classifiers.get(number), state.domains.get(number)
        reference, head = state.references.get(number), state.heads.get(number)
        return AdapterEntry(
            self._adapter("adapters", number, state.adapters.entries[number]),
            self._head(number, head) if head else None,
            self._shared("classifiers", classifier, number) if classifier else None,
            self._domain(number, domain) if domain else None,
            ReferenceEntry(
                self._adapter("reference adapters", number, reference.adapter),
                self._shared("references", reference.classifier, number),
            )
            if reference
            else None,
        )

    def _adapter(self, kind: str, number: int, entry: Adapter | AdapterSource) -> str:
        def encode() -> Files:
            if isinstance(entry, StoredAdapter):  # its files as they are
                return entry.files()
            return to_peft(entry if isinstance(entry, Adapter) else entry(), self.backbone)

        def check(files: Files, path: Path) -> None:
            decode_adapter(files, path, self.backbone)

        return self._put(kind, number, entry, encode, check)

    def _head(self, number: int, head: Head) -> str:
        return self._put(
            "heads",
            number,
            head,
            lambda: {"": encode_head(head)},
            lambda files, path: decode_head(files[""], path, self.backbone),
        )

    def _expert(self, kind: str, router: Router, number: int) -> str:
        return self._tensors(kind, number, router.experts[number], router.experts[number])

    def _shared(self, kind: str, router: Router, number: int) -> str:
        return self._tensors(f"{kind} shared", number, router.shared, router.shared)

    def _domain(self, number: int, domain: Domain) -> str:
        return self._tensors("domains", number, domain, vars(domain))

    def _tensors(self, kind: str, number: int, value: object, tensors: Expert) -> str:
        return self._put(
            kind,
            number,
            value,
            lambda: {"": encode_expert(tensors)},
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

    def _share(self, number: int, share: Share | None) -> str | None:
        if share is None:
            return None
        source = share.source
        return self._put(
            "shares",
            number,
            share,
            lambda: {
                "": source.file() if isinstance(source, StoredShare) else encode_share(share.parts)
            },
            lambda files, path: decode_share(files[""], path),
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
        for name, entry in artifact.files.items():
            listed, info = self.present.get(name), self.found.get(name)
            if listed is not entry and listed != entry:
                return False
            if info is None or problem_of(info) or info.st_size != entry.bytes:
                return False
        return True


def _named(kind: str, number: int, value: object, files: Files) -> Artifact:
    directory, suffix = kind, ""
    if kind.endswith(" shared"):
        directory, suffix = kind.removesuffix(" shared"), SHARED_SUFFIX
    elif kind == "reference adapters":
        directory = "adapters"
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
