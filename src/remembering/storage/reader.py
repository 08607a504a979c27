"""Load a state from a folder, checking everything before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from remembering.adapters.bank import AdapterBank, AdapterCache
from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.config import ClassifierSettings
from remembering.errors import RememberingError, StorageError
from remembering.routing import Expert
from remembering.routing.classifier import GaussianClassifier
from remembering.routing.domain import Domain
from remembering.routing.gaussian import GaussianRouter
from remembering.routing.share import Share
from remembering.runtime.files import SafeFolder, sha256
from remembering.state import ModelState, Reference, ReplayMemory, TaskRecord
from remembering.storage.artifacts import (
    Artifact,
    StoredAdapter,
    StoredReplay,
    StoredShare,
    artifact_key,
    decode_domain,
    decode_expert,
    decode_head,
    read_verified,
)
from remembering.storage.manifest import (
    MANIFEST,
    PREVIOUS,
    AdapterEntry,
    BackboneReference,
    Manifest,
    ReferenceEntry,
    parse_manifest,
    read_manifest_bytes,
    read_previous_bytes,
)
from remembering.storage.saved import SavedModel
from remembering.storage.validation import check_state


def load(
    folder: Path,
    backbone: str | Path | Backbone | None = None,
    device: str | torch.device | None = None,
    *,
    intact_only: bool = False,
    previous: bool = False,
    cache_bytes: int | None = None,
) -> tuple[ModelState, Backbone, SavedModel]:
    """Read the model in a folder, also while another process writes to it.

    Args:
        folder: The folder.
        backbone: Where the model's backbone is now, if it moved, or the loaded backbone.
        device: Where to run; a GPU if there is one.
        intact_only: Leave out tasks whose files are damaged instead of raising.
        previous: Load the state before the last save.
        cache_bytes: Upper bound on adapters that stay in memory between batches.

    Raises:
        RememberingError: If there is no model, or a file is missing, damaged or not plain, or the
            backbone is not the one that the model was learned on.
    """
    safe, name = SafeFolder(folder), PREVIOUS if previous else MANIFEST
    read = read_previous_bytes if previous else read_manifest_bytes
    cache = AdapterCache(cache_bytes)
    while True:
        data = read(safe)
        manifest = parse_manifest(data, safe.path / name)
        damaged = damaged_files(safe, manifest) if intact_only else {}
        kept = _without(manifest, damaged) if damaged else manifest
        loaded = _load_backbone(safe, kept.backbone, backbone, device)
        reader = _Reader(safe, kept, manifest, loaded)
        try:
            state = reader.state(cache)
            check_state(state, loaded, reader.path_of)
        except RememberingError as error:
            if read(safe) != data:  # a writer has removed files meanwhile
                continue
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"the model in {safe.path} cannot be used: {error}") from error
        state = _without_shares(state) if damaged else state
        ancestors = set() if damaged else {sha256(data)}
        if previous:  # a save may replace what comes after it
            ancestors.add(sha256(read_manifest_bytes(safe)))
        saved = SavedModel(manifest.model_id, manifest.generation, reader.artifacts, ancestors)
        if damaged:
            saved = replace(saved, incomplete=sha256(data))
        elif not previous:
            saved = replace(saved, manifest=manifest, digest=sha256(data))
        return state, loaded, saved


def damaged_files(folder: SafeFolder, manifest: Manifest) -> dict[str, str]:
    """Return the files that are not as they were saved, each with the reason."""
    damaged = {}
    for name, entry in manifest.files.items():
        try:
            read_verified(folder, name, entry)
        except StorageError as error:
            damaged[name] = str(error)
    return damaged


def _without(manifest: Manifest, damaged: Mapping[str, str]) -> Manifest:
    """Return the manifest without the tasks that need a damaged file."""

    def intact(*paths: str | None) -> bool:
        return not any(
            path and (name == path or name.startswith(f"{path}/"))
            for path in paths
            for name in damaged
        )

    nothing = replace(manifest, tasks=(), adapters={}, shared=None)
    if not intact(manifest.shared):  # every task needs it
        return nothing
    adapters = {n: entry for n, entry in manifest.adapters.items() if intact(*_paths(entry))}
    tasks = tuple(
        # Only exact forgetting needs a share: without it, the task is still usable.
        replace(task, share=task.share if intact(task.share) else None)
        for task in manifest.tasks
        if str(task.adapter) in adapters
        and intact(task.expert, task.classifier, task.reference, task.memory)
    )
    if not tasks:
        return nothing
    served = {str(task.adapter) for task in tasks}
    adapters = {number: entry for number, entry in adapters.items() if number in served}
    return replace(manifest, tasks=tasks, adapters=adapters)


def _without_shares(state: ModelState) -> ModelState:
    """Remove the shares of damaged tasks from the statistics that tasks have in common."""
    router = state.router
    return replace(
        state,
        router=router.rescaled() if isinstance(router, GaussianRouter) else router,
        classifiers={n: classifier.rescaled() for n, classifier in state.classifiers.items()},
        references={
            n: replace(reference, classifier=reference.classifier.rescaled())
            for n, reference in state.references.items()
        },
    )


def _paths(adapter: AdapterEntry) -> list[str | None]:
    paths = [adapter.folder, adapter.head, adapter.classifier, adapter.domain]
    reference = adapter.reference
    return paths + ([reference.folder, reference.shared] if reference else [])


class _Reader:
    """Reads the artifacts that a manifest lists."""

    def __init__(self, folder: SafeFolder, manifest: Manifest, whole: Manifest, backbone: Backbone):
        self.folder, self.manifest, self.backbone = folder, manifest, backbone
        self.whole = whole  # with the damaged tasks
        self.artifacts: dict[str, Artifact] = {}

    def state(self, cache: AdapterCache) -> ModelState:
        """Read everything; adapters, replay images and shares are verified, but not kept."""
        manifest = self.manifest
        entries = {int(number): entry for number, entry in manifest.adapters.items()}
        adapters = {n: self._adapter(entry.folder) for n, entry in entries.items()}
        for number, source in adapters.items():
            self._known("adapters", number, source, entries[number].folder)
        references = {
            n: (entry.reference, self._adapter(entry.reference.folder))
            for n, entry in entries.items()
            if entry.reference
        }
        sources = [*adapters.values(), *(source for _, source in references.values())]
        if len({str(source.shape) for source in sources}) > 1:
            raise StorageError(
                f"the adapters in {self.folder.path} differ in rank or layers; restore them from "
                "a copy"
            )
        empty = ModelState.empty(manifest.settings, self.backbone)
        experts = {t.number: self._expert("routers", t.number, t.expert) for t in manifest.tasks}
        shared = self._tensors(manifest.shared) if manifest.shared is not None else {}
        router = type(empty.router)(empty.settings.router, experts, shared)
        if manifest.shared is not None:
            self._known("routers shared", 0, router.shared, manifest.shared)
        return replace(
            empty,
            router=router,
            tasks=tuple(
                TaskRecord(t.number, t.name, t.classes, t.images, t.adapter) for t in manifest.tasks
            ),
            adapters=AdapterBank(adapters, cache),
            heads={n: self._head(n, entry.head) for n, entry in entries.items() if entry.head},
            classifiers={
                n: self._classifier(empty.settings.classifier, "classifiers", n, entry.classifier)
                for n, entry in entries.items()
                if entry.classifier
            },
            domains={
                n: self._domain(n, entry.domain) for n, entry in entries.items() if entry.domain
            },
            references={
                n: self._reference(empty.settings.classifier, n, entry, source())
                for n, (entry, source) in references.items()
            },
            memories={
                t.number: self._memory(t.number, t.memory) for t in manifest.tasks if t.memory
            },
            shares={t.number: self._share(t.number, t.share) for t in manifest.tasks if t.share},
            next_number=manifest.next_number,
        )

    def path_of(self, key: str) -> Path:
        """Return the path of an artifact that was read."""
        return self.folder.path / self.artifacts[key].path

    def _known(self, kind: str, number: int, value: object, path: str) -> None:
        self.artifacts[artifact_key(kind, number)] = Artifact.listed(value, path, self.manifest)

    def _read(self, path: str) -> bytes:
        return read_verified(self.folder, path, self.manifest.files[path])

    def _adapter(self, path: str) -> StoredAdapter:
        return StoredAdapter(self.folder, path, self.manifest, self.backbone)

    def _tensors(self, path: str) -> Expert:
        return decode_expert(self._read(path), self.folder.path / path, self.backbone.device)

    def _expert(self, kind: str, number: int, path: str) -> Expert:
        expert = self._tensors(path)
        self._known(kind, number, expert, path)
        return expert

    def _classifier(
        self, settings: ClassifierSettings, kind: str, adapter: int, path: str
    ) -> GaussianClassifier:
        """Read the class statistics of an adapter, or with kind "references" the exact ones."""
        experts = {
            task.number: self._expert(kind, task.number, expert)
            for task in self.manifest.tasks
            if task.adapter == adapter
            and (expert := task.classifier if kind == "classifiers" else task.reference)
        }
        stored = self._tensors(path)
        shared = self._of_kept_tasks(stored, adapter)
        classifier = GaussianClassifier(settings, experts, shared)
        if shared is stored:
            self._known(f"{kind} shared", adapter, classifier.shared, path)
        return classifier

    def _of_kept_tasks(self, shared: Expert, adapter: int) -> Expert:
        """Return the shared tensors of a classifier without the rows of damaged tasks."""
        kept = {task.number for task in self.manifest.tasks}
        served = [task for task in self.whole.tasks if task.adapter == adapter]
        rows = torch.tensor([task.number in kept for task in served for _ in task.classes])
        correction = shared.get("logit_correction")
        if correction is None or rows.all() or correction.shape[:1] != rows.shape:
            return shared
        return {**shared, "logit_correction": correction[rows.to(correction.device)]}

    def _reference(
        self, settings: ClassifierSettings, number: int, entry: ReferenceEntry, adapter: Adapter
    ) -> Reference:
        self._known("reference adapters", number, adapter, entry.folder)
        return Reference(adapter, self._classifier(settings, "references", number, entry.shared))

    def _domain(self, number: int, path: str) -> Domain:
        domain = decode_domain(self._read(path), self.folder.path / path)
        self._known("domains", number, domain, path)
        return domain

    def _head(self, number: int, path: str) -> Head:
        head = decode_head(self._read(path), self.folder.path / path, self.backbone)
        self._known("heads", number, head, path)
        return head

    def _share(self, number: int, path: str) -> Share:
        share = Share(StoredShare(self.folder, path, self.manifest))
        self._known("shares", number, share, path)
        return share

    def _memory(self, number: int, path: str) -> ReplayMemory:
        source = StoredReplay(self.folder, path, self.manifest)
        memory = ReplayMemory(source, source.labels, source.held_out)
        self._known("memory", number, memory, path)
        return memory


def _load_backbone(
    folder: SafeFolder,
    reference: BackboneReference,
    backbone: str | Path | Backbone | None,
    device: str | torch.device | None,
) -> Backbone:
    """Load the backbone and compare it with the one that the model was learned on."""
    options: dict[str, Any] = {}
    if backbone is None and reference.revision is not None:
        options["revision"] = reference.revision
    if isinstance(backbone, Backbone):
        loaded = backbone
    else:
        loaded = Backbone.load(backbone or reference.name, reference.image_size, device, **options)
    if loaded.fingerprint() != reference.fingerprint:
        raise StorageError(
            f"the model in {folder.path} was learned on another backbone than "
            f"'{loaded.name}'; give the weights it was learned on, those of "
            f"'{reference.name}'"
        )
    return loaded
