"""A model on disk: safetensors and JSON, one manifest, atomic.

    MODEL_DIR/
      manifest.json                      settings, tasks, gate, SHA-256 of every file; written last
      adapters/NUMBER-HASH/              PEFT's adapter_config.json and adapter_model.safetensors
      heads/NUMBER-HASH.safetensors      one per adapter; its classes in the file's metadata
      routers/NUMBER-HASH.safetensors    one expert per task, and what all have in common
      memory/NUMBER-HASH.safetensors     replay images, if there is a capacity

What a file holds never changes, and its name says what it holds, so files are never rewritten: a
save adds what is new, replaces the manifest, and then removes what the manifest no longer names.
Whatever moment a process dies, the folder is the model before or the model after.

Experts and replay images are memory maps of their files; adapters are read through theirs when they
are needed. A map outlives the name of its file, so a reader goes on while a writer removes files.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from remembering.adapters.bank import AdapterBank, AdapterCache
from remembering.adapters.lora import Adapter
from remembering.adapters.peft_format import CONFIG_FILE, WEIGHTS_FILE, to_peft
from remembering.backbones.backbone import BUNDLED, Backbone
from remembering.errors import RememberingError
from remembering.learning.checkpoint import NAME as PROGRESS
from remembering.routing import Expert, make_router
from remembering.runtime.files import UNFINISHED, remove_unfinished, sha256, write_atomic
from remembering.runtime.lock import NAME as LOCK
from remembering.runtime.lock import only_writer
from remembering.state import ModelState, ReplayMemory, TaskRecord
from remembering.storage.artifacts import (
    Artifact,
    Build,
    StoredAdapter,
    checked,
    copies,
    on,
    pack_expert,
    pack_head,
    pack_memory,
    unpack,
    unpack_head,
    unpack_memory,
)
from remembering.storage.manifest import (
    MANIFEST,
    VERSION,
    AdapterEntry,
    BackboneReference,
    Manifest,
    TaskEntry,
    is_model,
    read_manifest,
)

ROOMS = ("adapters", "heads", "routers", "memory")
_FILE = re.compile(r"\d{4,}-[0-9a-f]{12}.*")


@dataclass(frozen=True)
class SavedModel:
    """What is known of the folder that a state was loaded from or saved to.

    Attributes:
        folder: The folder.
        manifest: What the folder held then.
        artifacts: Parts of the state that are packed and hashed already.
    """

    folder: Path
    manifest: Manifest
    artifacts: Mapping[str, Artifact]


def save(
    state: ModelState, backbone: Backbone, folder: Path, saved: SavedModel | None = None
) -> tuple[ModelState, SavedModel]:
    """Write a state into a folder that is new, empty, or holds a model already.

    Returns:
        The state, whose adapters may now be read from the folder, and what was saved.
    """
    if state.observed:
        raise RememberingError(
            f"{state.observed} observed images wait to be learned and cannot be saved; call flush "
            "first, with discard=True if they cannot be learned"
        )
    if folder.exists() and not folder.is_dir():
        raise RememberingError(f"{folder} is a file; give a folder for the model")
    with only_writer(folder):
        # Refuses folders with other files in them, and models of another version.
        before = read_manifest(folder) if is_model(folder) or in_use(folder) else None
        if before and saved and saved.folder == folder.resolve() and saved.manifest != before:
            raise RememberingError(
                f"another model was saved to {folder} since this one was loaded or saved there; "
                "load it again and learn on that, or save to another folder"
            )
        known = saved.artifacts if saved else {}
        writer = _Writer(state, backbone, folder, known, before.files if before else {})
        manifest = writer.write()
        write_atomic(folder / MANIFEST, manifest.text().encode())
        _remove_unnamed(folder, writer)
        if state.adapters.cache.max_bytes is not None:
            adapters = state.adapters
            for number, entry in manifest.adapters.items():
                if isinstance(adapters.entries[int(number)], Adapter):
                    source = StoredAdapter(folder, entry.folder, manifest, backbone)
                    adapters = adapters.with_adapter(int(number), source)
            state = replace(state, adapters=adapters)
        return state, SavedModel(folder.resolve(), manifest, writer.artifacts)


class _Writer:
    """Writes those artifacts of a state that a folder does not have yet."""

    def __init__(
        self,
        state: ModelState,
        backbone: Backbone,
        folder: Path,
        known: Mapping[str, Artifact],
        before: Mapping[str, str],
    ):
        self.state, self.backbone, self.folder = state, backbone, folder
        self.known, self.before = known, before
        self.artifacts: dict[str, Artifact] = {}
        self.written: list[str] = []

    def write(self) -> Manifest:
        """Write everything but the manifest, and return the manifest."""
        state = self.state
        adapters = {str(n): AdapterEntry(self._adapter(n), self._head(n)) for n in state.adapters}
        tasks = [
            TaskEntry(
                **vars(record),
                expert=self._expert(record.number),
                memory=self._memory(record.number),
            )
            for record in state.tasks
        ]
        return Manifest(
            "remembering-model",
            VERSION,
            BackboneReference(
                _portable_name(self.backbone.name),
                self.backbone.image_size,
                self.backbone.fingerprint(),
            ),
            state.settings,
            state.next_number,
            self._shared(),
            self._feature_adapter(),
            tuple(tasks),
            adapters,
            {
                name: digest
                for part in self.artifacts.values()
                for name, digest in part.digests.items()
            },
        )

    def _adapter(self, number: int) -> str:
        entry = self.state.adapters.entries[number]
        if isinstance(entry, StoredAdapter):  # its files as they are
            return self._put(_key("adapters", number), None, entry.files)
        adapter = self.state.adapters[number]
        return self._put(_key("adapters", number), None, lambda: to_peft(adapter, self.backbone))

    def _head(self, number: int) -> str:
        head = self.state.heads[number]
        return self._put(_key("heads", number), head, lambda: {"": pack_head(head)})

    def _expert(self, number: int) -> str:
        expert = self.state.router.experts[number]
        return self._put(_key("routers", number), expert, lambda: {"": pack_expert(expert)})

    def _memory(self, number: int) -> str | None:
        memory = self.state.memories.get(number)
        if memory is None:
            return None
        return self._put(_key("memory", number), memory, lambda: {"": pack_memory(memory)})

    def _shared(self) -> str | None:
        shared = self.state.router.shared
        if not shared:
            return None
        return self._put(_SHARED, shared, lambda: {"": pack_expert(shared)})

    def _feature_adapter(self) -> str | None:
        adapter = self.state.feature_adapter
        if adapter is None:
            return None
        return self._put(_FEATURE_ADAPTER, adapter, lambda: to_peft(adapter, self.backbone))

    def _put(self, key: str, value: object, pack: Callable[[], dict[str, bytes]]) -> str:
        """Name an artifact by its content, and write it if it is not there."""
        part, files = self.known.get(key), None
        if part is None or part.value is not value:
            files = pack()
            part = _named(key, value, files)
        self.artifacts[key] = part
        for name, digest in part.digests.items():
            if self.before.get(name) != digest or not (self.folder / name).is_file():
                files = pack() if files is None else files
                write_atomic(self.folder / name, files[name[len(part.stem) + 1 :]])
                self.written.append(part.stem)
        return part.stem


def _key(room: str, number: int) -> str:
    """How the name of a part begins and ends, with * for its hash."""
    return f"{room}/{number:04d}-*" + ("" if room == "adapters" else ".safetensors")


_SHARED, _FEATURE_ADAPTER = "routers/0000-*-shared.safetensors", "adapters/0000-*-eyes"


def _named(key: str, value: object, files: dict[str, bytes]) -> Artifact:
    hashes = {name: sha256(data) for name, data in files.items()}
    whole = hashes[""] if "" in hashes else sha256(b"".join(files.values()))
    stem = key.replace("*", whole[:12])
    return Artifact(value, stem, {f"{stem}/{n}" if n else stem: h for n, h in hashes.items()})


def _remove_unnamed(folder: Path, writer: _Writer) -> None:
    """Remove what earlier states of this model, and a writer that died, left in its rooms."""
    named = {part.stem for part in writer.artifacts.values()}
    for room in ROOMS:
        for path in (folder / room).iterdir() if (folder / room).is_dir() else ():
            if f"{room}/{path.name}" in named:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for unfinished in {folder, *(folder / stem for stem in writer.written)}:
        remove_unfinished(unfinished)


def load(
    folder: Path,
    backbone: str | Path | Backbone | None = None,
    device: str | torch.device | None = None,
    intact_only: bool = False,
    cache_bytes: int | None = None,
) -> tuple[ModelState, Backbone, SavedModel]:
    """Read the model in `folder`, checking every file against the manifest.

    A writer may replace the manifest and remove what it no longer names while this reads; then
    this reads again.
    """
    while True:
        if intact_only:
            manifest, wrong = _damage(folder)
            whole = _intact(manifest, wrong)
        else:
            whole = manifest = read_manifest(folder)
        try:
            state, loaded, artifacts = _assemble(folder, whole, backbone, device, cache_bytes)
            return state, loaded, SavedModel(folder.resolve(), manifest, artifacts)
        except RememberingError:
            if read_manifest(folder) == manifest:
                raise


def verify(folder: Path) -> list[str]:
    """What is wrong with the files of a model, a sentence each; empty if all is well."""
    return list(_damage(folder)[1].values())


def _damage(folder: Path) -> tuple[Manifest, dict[str, str]]:
    """The manifest, and the files that are not what was saved, with the reason."""
    while True:
        manifest = read_manifest(folder)
        wrong = {}
        for name in manifest.files:
            try:
                checked(folder, name, manifest)
            except RememberingError as error:
                wrong[name] = str(error)
        if not wrong or read_manifest(folder) == manifest:  # else a writer came between
            return manifest, wrong


def _intact(manifest: Manifest, wrong: dict[str, str]) -> Manifest:
    """The manifest without the tasks that need a damaged file."""

    def whole(*names: str | None) -> bool:
        return not any(
            name and (w == name or w.startswith(f"{name}/")) for name in names for w in wrong
        )

    if not whole(manifest.feature_adapter, manifest.shared):  # every task needs these
        return replace(manifest, tasks=(), adapters={}, feature_adapter=None, shared=None)
    adapters = {n: e for n, e in manifest.adapters.items() if whole(e.folder, e.head)}
    tasks = tuple(
        task
        for task in manifest.tasks
        if str(task.adapter) in adapters and whole(task.expert, task.memory)
    )
    served = {str(task.adapter) for task in tasks}
    adapters = {number: entry for number, entry in adapters.items() if number in served}
    return replace(manifest, tasks=tasks, adapters=adapters)


def _assemble(
    folder: Path,
    manifest: Manifest,
    backbone: str | Path | Backbone | None,
    device: str | torch.device | None,
    cache_bytes: int | None,
) -> tuple[ModelState, Backbone, dict[str, Artifact]]:
    reference = manifest.backbone
    if isinstance(backbone, Backbone):
        loaded = backbone
    else:
        loaded = Backbone.load(backbone or reference.name, reference.image_size, device)
    given = (loaded.fingerprint(), loaded.image_size)
    if given != (reference.fingerprint, reference.image_size):
        raise RememberingError(
            f"the model in {folder} was learned on another backbone than '{loaded.name}'; give "
            f"the weights it was learned on, those of '{reference.name}' at "
            f"{reference.image_size} px"
        )
    artifacts: dict[str, Artifact] = {}

    def known(key: str, value: object, stem: str, names: tuple[str, ...] = ()) -> None:
        paths = [f"{stem}/{name}" for name in names] or [stem]
        artifacts[key] = Artifact(value, stem, {path: manifest.files[path] for path in paths})

    def read(stem: str, build: Build) -> Any:
        return unpack(folder, stem, manifest, build)

    entries, heads = {}, {}
    for n, entry in manifest.adapters.items():
        number = int(n)
        entries[number] = StoredAdapter(folder, entry.folder, manifest, loaded)
        heads[number] = read(entry.head, lambda t, m: unpack_head(t, m, loaded))
        known(_key("adapters", number), None, entry.folder, (CONFIG_FILE, WEIGHTS_FILE))
        known(_key("heads", number), heads[number], entry.head)
    feature_adapter = None
    if manifest.feature_adapter is not None:
        feature_adapter = StoredAdapter(folder, manifest.feature_adapter, manifest, loaded)()
        files = (CONFIG_FILE, WEIGHTS_FILE)
        known(_FEATURE_ADAPTER, feature_adapter, manifest.feature_adapter, files)
    shared: Expert = {}
    if manifest.shared is not None:
        shared = read(manifest.shared, lambda t, _: on(copies(t), loaded.device))
    experts: dict[int, Expert] = {}
    memories: dict[int, ReplayMemory] = {}
    records = []
    for task in manifest.tasks:
        records.append(TaskRecord(task.number, task.name, task.classes, task.images, task.adapter))
        # Experts are only ever stacked: where their tensors lie does not matter.
        expert = read(task.expert, lambda t, _: on(t, loaded.device))
        experts[task.number] = expert
        known(_key("routers", task.number), expert, task.expert)
        if task.memory is not None:
            memory = read(task.memory, unpack_memory)
            memories[task.number] = memory
            known(_key("memory", task.number), memory, task.memory)
    router = type(make_router(manifest.settings.router))(manifest.settings.router, experts, shared)
    if manifest.shared is not None:
        known(_SHARED, router.shared, manifest.shared)
    state = ModelState(
        manifest.settings,
        router,
        tuple(records),
        AdapterBank(entries, AdapterCache(cache_bytes)),
        heads,
        memories,
        feature_adapter,
        (),
        manifest.next_number,
    )
    return state, loaded, artifacts


def in_use(folder: Path) -> bool:
    """Whether a folder without a manifest holds other things than a first save that died."""
    if not folder.is_dir():
        return False
    for path in folder.iterdir():
        progress = path.match(f"{Path(PROGRESS).stem}*.safetensors")
        if path.name == LOCK or progress or path.name.endswith(UNFINISHED):
            continue
        ours = path.name in ROOMS and path.is_dir()
        if not ours or not all(_FILE.fullmatch(p.name.lstrip(".")) for p in path.iterdir()):
            return True
    return False


def _portable_name(name: str) -> str:
    """A folder by its full path, so that the model loads from anywhere on this machine."""
    path = Path(name).expanduser()
    return str(path.resolve()) if name != BUNDLED and path.is_dir() else name
