"""A model on disk: safetensors and JSON, one manifest, atomic.

    MODEL_DIR/
      manifest.json                      settings, tasks, gate, SHA-256 of every file; written last
      adapters/NUMBER-HASH/              PEFT's adapter_config.json and adapter_model.safetensors
      heads/NUMBER-HASH.safetensors      one per adapter; its classes in the file's metadata
      routers/NUMBER-HASH.safetensors    one expert per task
      memory/NUMBER-HASH.safetensors     replay images, if there is a capacity

An adapter, a head or an expert never changes once it is learned, so files are never rewritten: a
save adds what is new, replaces the manifest, and then removes what the manifest no longer names.
Whatever moment a process dies, the folder is the model before or the model after.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from remembering import typed
from remembering.adapters import CONFIG_FILE, WEIGHTS_FILE, from_peft, to_peft
from remembering.backbone import Backbone
from remembering.config import Settings
from remembering.errors import RememberingError
from remembering.files import in_use, sha256, write_atomic
from remembering.heads import Head
from remembering.lock import only_writer
from remembering.memory import Memory

if TYPE_CHECKING:
    from remembering.model import RememberingTransformer

VERSION = 1
MANIFEST = "manifest.json"
ROOMS = ("adapters", "heads", "routers", "memory")


@dataclass(frozen=True)
class BackboneReference:
    """Which backbone a model was learned on."""

    name: str
    image_size: int
    fingerprint: str


@dataclass(frozen=True)
class TaskEntry:
    """A task, and the files that hold its parts."""

    number: int
    name: str
    classes: tuple[str | int, ...]
    images: int
    adapter: int
    expert: str
    memory: str | None = None


@dataclass(frozen=True)
class AdapterEntry:
    """The files of an adapter."""

    folder: str
    head: str


@dataclass(frozen=True)
class Manifest:
    """Everything about a model but its tensors."""

    format: Literal["remembering-model"]
    version: int
    backbone: BackboneReference
    settings: Settings
    next_number: int
    tasks: tuple[TaskEntry, ...] = ()
    adapters: dict[str, AdapterEntry] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of every file, by its path in the folder."""


def save(model: RememberingTransformer, folder: Path) -> None:
    """Write `model` into `folder`, which is new, empty, or holds a model already."""
    if folder.exists() and not folder.is_dir():
        raise RememberingError(f"{folder} is a file; give a folder for the model")
    files, manifest = _pack(model)
    with only_writer(folder):
        if in_use(folder):
            read_manifest(folder)  # refuses other folders, and models of another version
        for name, data in files.items():
            path = folder / name
            if not (path.is_file() and path.stat().st_size == len(data)):
                write_atomic(path, data)
        text = json.dumps(dataclasses.asdict(manifest), indent=1, ensure_ascii=False)
        write_atomic(folder / MANIFEST, text.encode())
        _remove_unnamed(folder, set(files))


def _pack(model: RememberingTransformer) -> tuple[dict[str, bytes], Manifest]:
    """The files of a model by name, and the manifest that names them."""
    files: dict[str, bytes] = {}

    def put(room: str, number: int, parts: dict[str, bytes], suffix: str = "") -> str:
        """Name a file, or a folder of files, by what is in it."""
        digest = sha256(b"".join(parts.values()))[:12]
        stem = f"{room}/{number:04d}-{digest}{suffix}"
        files.update({f"{stem}/{name}" if name else stem: data for name, data in parts.items()})
        return stem

    adapters = {}
    for number, adapter in model.adapters.items():
        head = model.heads[number]
        adapters[str(number)] = AdapterEntry(
            put("adapters", number, to_peft(adapter, model.backbone)),
            put("heads", number, {"": _pack_head(head)}, ".safetensors"),
        )
    tasks = []
    for record in model.tasks:
        expert = {key: value.cpu() for key, value in model.router.experts[record.number].items()}
        memory = model.memories.get(record.number)
        tasks.append(
            TaskEntry(
                **vars(record),
                expert=put("routers", record.number, {"": save_tensors(expert)}, ".safetensors"),
                memory=put("memory", record.number, {"": _pack_memory(memory)}, ".safetensors")
                if memory
                else None,
            )
        )
    manifest = Manifest(
        "remembering-model",
        VERSION,
        BackboneReference(
            _portable_name(model.backbone.name),
            model.backbone.image_size,
            model.backbone.fingerprint(),
        ),
        model.settings,
        model.next_number,
        tuple(tasks),
        adapters,
        {name: sha256(data) for name, data in files.items()},
    )
    return files, manifest


def load(
    folder: Path, backbone: str | Path | None = None, intact_only: bool = False
) -> RememberingTransformer:
    """Read the model in `folder`, checking every file against the manifest.

    A writer may replace the manifest and remove what it no longer names while this reads; then
    this reads again.
    """
    while True:
        manifest = read_manifest(folder)
        try:
            return _assemble(
                folder, _intact(folder, manifest) if intact_only else manifest, backbone
            )
        except RememberingError:
            if read_manifest(folder) == manifest:
                raise


def verify(folder: Path) -> list[str]:
    """What is wrong with the files of a model, a sentence each; empty if all is well."""
    manifest = read_manifest(folder)
    return list(_damage(folder, manifest).values())


def _damage(folder: Path, manifest: Manifest) -> dict[str, str]:
    """The files that are not what was saved, and why."""
    wrong = {}
    for name in manifest.files:
        try:
            _checked(folder, name, manifest)
        except RememberingError as error:
            wrong[name] = str(error)
    return wrong


def _intact(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest without the tasks that need a damaged file."""
    wrong = _damage(folder, manifest)

    def whole(*names: str | None) -> bool:
        return not any(
            name and (w == name or w.startswith(f"{name}/")) for name in names for w in wrong
        )

    adapters = {n: e for n, e in manifest.adapters.items() if whole(e.folder, e.head)}
    tasks = tuple(
        task
        for task in manifest.tasks
        if str(task.adapter) in adapters and whole(task.expert, task.memory)
    )
    served = {str(task.adapter) for task in tasks}
    adapters = {number: entry for number, entry in adapters.items() if number in served}
    return dataclasses.replace(manifest, tasks=tasks, adapters=adapters)


def _assemble(
    folder: Path, manifest: Manifest, backbone: str | Path | None
) -> RememberingTransformer:
    from remembering.model import RememberingTransformer, TaskRecord

    reference = manifest.backbone
    loaded = Backbone.load(backbone or reference.name, reference.image_size)
    if loaded.fingerprint() != reference.fingerprint:
        raise RememberingError(
            f"the model in {folder} was learned on another backbone than "
            f"'{backbone or reference.name}'; give the weights it was learned on, "
            f"those of '{reference.name}'"
        )
    model = RememberingTransformer(loaded, manifest.settings)
    for number, entry in manifest.adapters.items():
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            _checked(folder, f"{entry.folder}/{name}", manifest)
        model.adapters[int(number)] = from_peft(folder / entry.folder, loaded)
        model.heads[int(number)] = _unpack(
            folder, entry.head, manifest, lambda t, m: _unpack_head(t, m, loaded)
        )
    for task in manifest.tasks:
        if str(task.adapter) not in manifest.adapters:
            raise RememberingError(
                f"{folder / MANIFEST} sends task '{task.name}' to adapter {task.adapter}, which is "
                "not there; restore the folder from a copy"
            )
        record = TaskRecord(task.number, task.name, task.classes, task.images, task.adapter)
        model.tasks.append(record)
        expert = _unpack(folder, task.expert, manifest, lambda t, _: _to(t, loaded.device))
        model.router.add(task.number, expert)
        if task.memory is not None:
            model.memories[task.number] = _unpack(folder, task.memory, manifest, _unpack_memory)
    model.next_number = manifest.next_number
    return model


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a model folder, checked for type and version."""
    path = folder / MANIFEST
    try:
        data: Any = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RememberingError(
            f"{folder} holds no model ({MANIFEST} is missing); give the folder of a saved model"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise RememberingError(f"{path} is damaged ({error}); restore it from a copy") from error
    version = data.get("version") if isinstance(data, dict) else None
    if type(version) is int and version != VERSION:
        raise RememberingError(
            f"the model in {folder} has version {version}, this program reads version {VERSION}; "
            + ("update the program" if version > VERSION else "save it anew with an older program")
        )
    return typed.read(Manifest, data, str(path))


def _portable_name(name: str) -> str:
    """A folder by its full path, so that the model loads from anywhere on this machine."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.is_dir() else name


def _pack_head(head: Head) -> bytes:
    tensors = {"columns": head.columns}
    if head.trained:
        tensors |= {"weight": head.weight.cpu(), "bias": head.bias.cpu()}
    packed: bytes = save_tensors(tensors, metadata={"classes": json.dumps(head.classes)})
    return packed


def _unpack_head(tensors: dict[str, Tensor], metadata: dict[str, Any], backbone: Backbone) -> Head:
    classes = tuple(metadata["classes"])
    if "weight" not in tensors:
        return Head.frozen(classes, tensors["columns"].tolist(), backbone)
    weight, bias = (tensors[key].to(backbone.device) for key in ("weight", "bias"))
    if weight.shape != (len(classes), backbone.dim) or bias.shape != (len(classes),):
        raise ValueError("its shape does not fit its classes and the backbone")
    return Head(classes, weight, bias, tensors["columns"])


def _pack_memory(memory: Memory) -> bytes:
    labels = json.dumps(memory.labels)
    packed: bytes = save_tensors({"images": memory.images}, metadata={"labels": labels})
    return packed


def _unpack_memory(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> Memory:
    return Memory(tensors["images"], tuple(metadata["labels"]))


def _to(tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {key: value.to(device) for key, value in tensors.items()}


def _unpack(
    folder: Path,
    name: str,
    manifest: Manifest,
    build: Callable[[dict[str, Tensor], dict[str, Any]], Any],
) -> Any:
    data = _checked(folder, name, manifest)
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        return build(load_tensors(data), {key: json.loads(value) for key, value in header.items()})
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise RememberingError(f"{folder / name} cannot be used: {error}") from error


def _checked(folder: Path, name: str, manifest: Manifest) -> bytes:
    """The bytes of a file that the manifest names, if they are what it says."""
    path = folder / name
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise RememberingError(f"{folder / MANIFEST} names a file outside the folder: {name}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RememberingError(
            f"{path} cannot be read ({error.strerror}); restore it from a copy"
        ) from error
    if sha256(data) != manifest.files.get(name):
        raise RememberingError(
            f"{path} is not the file that was saved (its SHA-256 differs); restore it from a copy"
        )
    return data


def _remove_unnamed(folder: Path, named: set[str]) -> None:
    """Remove what earlier states of this model left in its rooms."""
    for room in ROOMS:
        for path in sorted((folder / room).rglob("*"), reverse=True):  # files before their folders
            if path.is_dir():
                with contextlib.suppress(OSError):
                    path.rmdir()  # only if it is empty
            elif str(path.relative_to(folder)) not in named:
                path.unlink()
