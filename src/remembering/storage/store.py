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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remembering.adapters.bank import AdapterBank
from remembering.adapters.peft_format import CONFIG_FILE, WEIGHTS_FILE, to_peft
from remembering.backbones.backbone import BUNDLED, Backbone
from remembering.errors import RememberingError
from remembering.inference.prediction import TaskRecord
from remembering.learning.checkpoint import NAME as PROGRESS
from remembering.runtime.files import UNFINISHED, remove_unfinished, sha256, write_atomic
from remembering.runtime.lock import NAME as LOCK
from remembering.runtime.lock import only_writer
from remembering.storage.artifacts import (
    Build,
    Part,
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

if TYPE_CHECKING:
    from remembering.model import RememberingTransformer

ROOMS = ("adapters", "heads", "routers", "memory")
_FILE = re.compile(r"\d{4,}-[0-9a-f]{12}.*")


def save(model: RememberingTransformer, folder: Path) -> None:
    """Write `model` into `folder`, which is new, empty, or holds a model already."""
    if folder.exists() and not folder.is_dir():
        raise RememberingError(f"{folder} is a file; give a folder for the model")
    with only_writer(folder):
        # Refuses folders with other things in them, and models of another version.
        before = read_manifest(folder) if is_model(folder) or in_use(folder) else None
        place, last = model.stored or (None, None)
        if before and place == folder.resolve() and last != before:
            raise RememberingError(
                f"another model was saved to {folder} since this one was loaded or saved there; "
                "load it again and learn on that, or save to another folder"
            )
        writer = _Writer(model, folder, before.files if before else {})
        manifest = writer.write()
        write_atomic(folder / MANIFEST, manifest.text().encode())
        model.parts = writer.parts
        model.stored = folder.resolve(), manifest
        _remove_unnamed(folder, writer)
        for number, entry in manifest.adapters.items():
            if model.adapters.limited and model.adapters.source(int(number)) is None:
                source = StoredAdapter(folder, entry.folder, manifest, model.backbone)
                model.adapters.stored(int(number), source)


class _Writer:
    """Writes those parts of a model that a folder does not have yet."""

    def __init__(self, model: RememberingTransformer, folder: Path, before: Mapping[str, str]):
        self.model, self.folder, self.before = model, folder, before
        self.parts: dict[str, Part] = {}
        self.written: list[str] = []

    def write(self) -> Manifest:
        """The manifest, after everything that it names."""
        model = self.model
        adapters = {str(n): AdapterEntry(self._adapter(n), self._head(n)) for n in model.adapters}
        tasks = [
            TaskEntry(
                **vars(record),
                expert=self._expert(record.number),
                memory=self._memory(record.number),
            )
            for record in model.tasks
        ]
        return Manifest(
            "remembering-model",
            VERSION,
            BackboneReference(
                _portable_name(model.backbone.name),
                model.backbone.image_size,
                model.backbone.fingerprint(),
            ),
            model.settings,
            model.next_number,
            self._shared(),
            self._feature_adapter(),
            tuple(tasks),
            adapters,
            {name: digest for part in self.parts.values() for name, digest in part.digests.items()},
        )

    def _adapter(self, number: int) -> str:
        bank, backbone = self.model.adapters, self.model.backbone
        source = bank.source(number)
        if isinstance(source, StoredAdapter):  # its files as they are
            return self._put(_key("adapters", number), None, source.files)
        return self._put(_key("adapters", number), None, lambda: to_peft(bank[number], backbone))

    def _head(self, number: int) -> str:
        head = self.model.heads[number]
        return self._put(_key("heads", number), head, lambda: {"": pack_head(head)})

    def _expert(self, number: int) -> str:
        expert = self.model.router.experts[number]
        return self._put(_key("routers", number), expert, lambda: {"": pack_expert(expert)})

    def _memory(self, number: int) -> str | None:
        memory = self.model.memories.get(number)
        if memory is None:
            return None
        return self._put(_key("memory", number), memory, lambda: {"": pack_memory(memory)})

    def _shared(self) -> str | None:
        shared = dict(self.model.router.shared)  # a new one, as what is shared does change
        if not shared:
            return None
        return self._put(_SHARED, shared, lambda: {"": pack_expert(shared)})

    def _feature_adapter(self) -> str | None:
        feature_adapter, backbone = self.model.feature_adapter, self.model.backbone
        if feature_adapter is None:
            return None
        return self._put(
            _FEATURE_ADAPTER, feature_adapter, lambda: to_peft(feature_adapter, backbone)
        )

    def _put(self, key: str, value: object, pack: Callable[[], dict[str, bytes]]) -> str:
        """Name a part by what is in it, and write it if it is not there."""
        part, files = self.model.parts.get(key), None
        if part is None or part.value is not value:
            files = pack()
            part = _named(key, value, files)
        self.parts[key] = part
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


def _named(key: str, value: object, files: dict[str, bytes]) -> Part:
    hashes = {name: sha256(data) for name, data in files.items()}
    whole = hashes[""] if "" in hashes else sha256(b"".join(files.values()))
    stem = key.replace("*", whole[:12])
    return Part(value, stem, {f"{stem}/{n}" if n else stem: h for n, h in hashes.items()})


def _remove_unnamed(folder: Path, writer: _Writer) -> None:
    """Remove what earlier states of this model, and a writer that died, left in its rooms."""
    named = {part.stem for part in writer.parts.values()}
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
    backbone: str | Path | None = None,
    intact_only: bool = False,
    cache_bytes: int | None = None,
) -> RememberingTransformer:
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
            model = _assemble(folder, whole, backbone, cache_bytes)
            model.stored = folder.resolve(), manifest
            return model
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
    folder: Path, manifest: Manifest, backbone: str | Path | None, cache_bytes: int | None
) -> RememberingTransformer:
    from remembering.model import RememberingTransformer

    reference = manifest.backbone
    loaded = Backbone.load(backbone or reference.name, reference.image_size)
    if loaded.fingerprint() != reference.fingerprint:
        raise RememberingError(
            f"the model in {folder} was learned on another backbone than "
            f"'{backbone or reference.name}'; give the weights it was learned on, "
            f"those of '{reference.name}'"
        )
    model = RememberingTransformer(loaded, manifest.settings)
    model.adapters = AdapterBank(cache_bytes)

    def known(key: str, value: object, stem: str, names: tuple[str, ...] = ()) -> None:
        paths = [f"{stem}/{name}" for name in names] or [stem]
        model.parts[key] = Part(value, stem, {path: manifest.files[path] for path in paths})

    def read(stem: str, build: Build) -> Any:
        return unpack(folder, stem, manifest, build)

    for n, entry in manifest.adapters.items():
        number = int(n)
        model.adapters.stored(number, StoredAdapter(folder, entry.folder, manifest, loaded))
        head = read(entry.head, lambda t, m: unpack_head(t, m, loaded))
        model.heads[number] = head
        known(_key("adapters", number), None, entry.folder, (CONFIG_FILE, WEIGHTS_FILE))
        known(_key("heads", number), head, entry.head)
    if manifest.feature_adapter is not None:
        model.feature_adapter = StoredAdapter(folder, manifest.feature_adapter, manifest, loaded)()
        known(
            _FEATURE_ADAPTER,
            model.feature_adapter,
            manifest.feature_adapter,
            (CONFIG_FILE, WEIGHTS_FILE),
        )
    shared, experts = {}, {}
    if manifest.shared is not None:
        shared = read(manifest.shared, lambda t, _: on(copies(t), loaded.device))
    for task in manifest.tasks:
        model.tasks.append(
            TaskRecord(task.number, task.name, task.classes, task.images, task.adapter)
        )
        # Experts are only ever stacked: where their tensors lie does not matter.
        expert = read(task.expert, lambda t, _: on(t, loaded.device))
        experts[task.number] = expert
        known(_key("routers", task.number), expert, task.expert)
        if task.memory is not None:
            memory = read(task.memory, unpack_memory)
            model.memories[task.number] = memory
            known(_key("memory", task.number), memory, task.memory)
    model.router.restore(experts, shared)
    model.next_number = manifest.next_number
    return model


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
