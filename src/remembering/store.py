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
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
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
from remembering.backbone import BUNDLED, Backbone
from remembering.checkpoint import NAME as PROGRESS
from remembering.config import Settings
from remembering.errors import RememberingError
from remembering.files import UNFINISHED, remove_unfinished, sha256, write_atomic
from remembering.heads import Head
from remembering.lock import NAME as LOCK
from remembering.lock import only_writer
from remembering.memory import Memory

if TYPE_CHECKING:
    from remembering.model import RememberingTransformer

VERSION = 3
MANIFEST = "manifest.json"
ROOMS = ("adapters", "heads", "routers", "memory")
_FILE = re.compile(r"\d{4,}-[0-9a-f]{12}.*")


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
    shared: str | None = None
    """What all experts have in common."""
    eyes: str | None = None
    """The adapter through which the router sees."""
    tasks: tuple[TaskEntry, ...] = ()
    adapters: dict[str, AdapterEntry] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of every file, by its path in the folder."""


def save(model: RememberingTransformer, folder: Path) -> None:
    """Write `model` into `folder`, which is new, empty, or holds a model already."""
    if folder.exists() and not folder.is_dir():
        raise RememberingError(f"{folder} is a file; give a folder for the model")
    files, manifest = _pack(model)
    text = json.dumps(dataclasses.asdict(manifest), indent=1, allow_nan=False)
    with only_writer(folder):
        # Refuses folders with other things in them, and models of another version.
        before = read_manifest(folder) if is_model(folder) or in_use(folder) else None
        for name, data in files.items():
            kept = before and before.files.get(name) == manifest.files[name]
            if not (kept and (folder / name).is_file()):
                write_atomic(folder / name, data)
        write_atomic(folder / MANIFEST, text.encode())
        _remove_unnamed(folder, set(files))
        remove_unfinished(folder)


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
    shared = {key: value.cpu() for key, value in model.router.shared.items()}
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
        put("routers", 0, {"": save_tensors(shared)}, "-shared.safetensors") if shared else None,
        put("adapters", 0, to_peft(model.eyes, model.backbone), "-eyes") if model.eyes else None,
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
        if intact_only:
            manifest, wrong = _damage(folder)
            whole = _intact(manifest, wrong)
        else:
            whole = manifest = read_manifest(folder)
        try:
            return _assemble(folder, whole, backbone)
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
                _checked(folder, name, manifest)
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

    if not whole(manifest.eyes, manifest.shared):  # every task needs these
        return dataclasses.replace(manifest, tasks=(), adapters={}, eyes=None, shared=None)
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
    if manifest.eyes is not None:
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            _checked(folder, f"{manifest.eyes}/{name}", manifest)
        model.eyes = from_peft(folder / manifest.eyes, loaded)
    shared, experts = {}, {}
    if manifest.shared is not None:
        shared = _unpack(folder, manifest.shared, manifest, lambda t, _: _to(t, loaded.device))
    for task in manifest.tasks:
        record = TaskRecord(task.number, task.name, task.classes, task.images, task.adapter)
        model.tasks.append(record)
        experts[task.number] = _unpack(
            folder, task.expert, manifest, lambda t, _: _to(t, loaded.device)
        )
        if task.memory is not None:
            model.memories[task.number] = _unpack(folder, task.memory, manifest, _unpack_memory)
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
    manifest = typed.read(Manifest, data, str(path))
    _check(manifest, path)
    return manifest


def _check(manifest: Manifest, path: Path) -> None:
    """What types cannot say: numbers that name things are small, unique and known."""
    numbers = [task.number for task in manifest.tasks]
    names = [task.name for task in manifest.tasks]
    wrong = None
    if not 0 <= manifest.next_number < 2**31:
        wrong = f"next_number = {manifest.next_number}"
    elif not all(0 <= n < manifest.next_number for n in numbers) or len({*numbers}) < len(numbers):
        wrong = f"the task numbers {numbers}"[:80]
    elif len({*names}) < len(names):
        wrong = "two tasks of one name"
    elif not all(n.isdecimal() and int(n) < manifest.next_number for n in manifest.adapters):
        wrong = f"the adapter numbers {list(manifest.adapters)}"[:80]
    if wrong:
        raise RememberingError(f"{path} is damaged: {wrong} cannot be; restore it from a copy")
    for task in manifest.tasks:
        if str(task.adapter) not in manifest.adapters:
            raise RememberingError(
                f"{path} sends task '{task.name}' to adapter {task.adapter}, which is not there; "
                "restore it from a copy"
            )


def _portable_name(name: str) -> str:
    """A folder by its full path, so that the model loads from anywhere on this machine."""
    path = Path(name).expanduser()
    return str(path.resolve()) if name != BUNDLED and path.is_dir() else name


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
        # Copies, aligned as torch's own: how a product is rounded depends on where tensors lie.
        tensors = {key: value.clone() for key, value in load_tensors(data).items()}
        return build(tensors, {key: json.loads(value) for key, value in header.items()})
    except (SafetensorError, ValueError, KeyError, RuntimeError, TypeError) as error:
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
