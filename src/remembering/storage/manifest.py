"""The manifest of a model folder: everything about a state except its tensors. Imports no torch.

MODEL_DIR/
  manifest.json                      settings, tasks, gate; SHA-256 and size of every file
  manifest.previous.json             the manifest before the last save
  manifest.replaced.json             the same while a save is under way
  adapters/NUMBER-HASH/              PEFT's adapter_config.json and adapter_model.safetensors
  heads/NUMBER-HASH.safetensors      one per adapter; its classes in the file's metadata
  routers/NUMBER-HASH.safetensors    one expert per task, and what all have in common (-shared)
  classifiers/NUMBER-HASH.safetensors  the classes of each task, and what each adapter shares
  references/NUMBER-HASH.safetensors   the same in the reference space of consolidated adapters
  domains/NUMBER-HASH.safetensors    one per adapter
  memory/NUMBER-HASH.safetensors     replay images of a task
  shares/NUMBER-HASH.safetensors     what a task added to shared statistics; only forget needs it
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from remembering import schema
from remembering.config import Settings
from remembering.errors import RememberingError, StorageError, reason
from remembering.runtime.files import SafeFolder

VERSION = 5
MANIFEST, PREVIOUS = "manifest.json", "manifest.previous.json"
REPLACED = "manifest.replaced.json"
"""A save writes the current manifest here, then the new one, and then renames this to `PREVIOUS`.
Whichever manifest is current after an interrupted save, the one before it is still there."""
DIRECTORIES = (
    "adapters",
    "heads",
    "routers",
    "classifiers",
    "references",
    "domains",
    "memory",
    "shares",
)
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""PEFT's names of the files of an adapter."""
MAX_BYTES = 256 * 1024**2
"""Largest manifest that is read; 1,000 tasks take about one megabyte."""
SHARED_SUFFIX = "-shared"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_NAME = re.compile(r"\d{4,10}-[0-9a-f]{12}(-[a-z]{1,20})?(\.safetensors)?")
_DIGEST, _SHA256 = re.compile("[0-9a-f]{12}"), re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class BackboneReference:
    """The backbone that a model was learned on.

    Attributes:
        name: "bundled", a local folder, or a name on the model hub.
        image_size: Input size in pixels.
        fingerprint: SHA-256 of weights and preprocessing; checked when the model is loaded.
        revision: Commit on the model hub, if it comes from there.
    """

    name: str
    image_size: int
    fingerprint: str
    revision: str | None = None


@dataclass(frozen=True)
class TaskEntry:
    """A task, and the paths of its artifacts.

    Attributes:
        number: See `TaskRecord`, also for name, classes, images and adapter.
        expert: Expert of the router.
        classifier: Expert of the classifier of its adapter.
        reference: The same in the reference space of its adapter.
        memory: Replay images.
        share: What the task added to shared statistics.
    """

    number: int
    name: str
    classes: tuple[str | int, ...]
    images: int
    adapter: int
    expert: str
    classifier: str | None = None
    reference: str | None = None
    memory: str | None = None
    share: str | None = None


@dataclass(frozen=True)
class ReferenceEntry:
    """The paths of a reference adapter, and of what its class experts have in common."""

    folder: str
    shared: str


@dataclass(frozen=True)
class AdapterEntry:
    """The paths of what belongs to an adapter: either a head, or a classifier's shared tensors."""

    folder: str
    head: str | None = None
    classifier: str | None = None
    domain: str | None = None
    reference: ReferenceEntry | None = None


@dataclass(frozen=True)
class FileEntry:
    """What a file must contain."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """Everything about a state except its tensors.

    Attributes:
        format: Identifies the format.
        version: Version of the format.
        model_id: Hash of the first save; the same for all saves of a model. Not random, so that
            equal runs write equal files.
        generation: Number of saves of the model so far.
        backbone: The backbone that the model was learned on.
        settings: How tasks are learned.
        next_number: Number of the next task.
        shared: Path of what all experts have in common.
        tasks: Learned tasks, in order.
        adapters: Adapters by number.
        files: Every file, by its path in the folder.
    """

    format: Literal["remembering-model"]
    version: int
    model_id: str
    generation: int
    backbone: BackboneReference
    settings: Settings
    next_number: int
    shared: str | None = None
    tasks: tuple[TaskEntry, ...] = ()
    adapters: dict[str, AdapterEntry] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the content of the file."""
        # Without indentation: json's fast encoder has none, and each save encodes all entries.
        return json.dumps(self, default=vars, allow_nan=False).encode() + b"\n"

    def artifacts(self) -> Iterator[tuple[str, str, int, str]]:
        """Iterate over all artifacts: path, directory, number, and suffix of the name."""
        paths: list[tuple[str | None, str, int, str]] = [(self.shared, "routers", 0, SHARED_SUFFIX)]
        for task in self.tasks:
            paths += [
                (task.expert, "routers", task.number, ""),
                (task.classifier, "classifiers", task.number, ""),
                (task.reference, "references", task.number, ""),
                (task.memory, "memory", task.number, ""),
                (task.share, "shares", task.number, ""),
            ]
        for key, adapter in self.adapters.items():
            number, reference = int(key), adapter.reference
            paths += [
                (adapter.folder, "adapters", number, ""),
                (adapter.head, "heads", number, ""),
                (adapter.classifier, "classifiers", number, SHARED_SUFFIX),
                (adapter.domain, "domains", number, ""),
            ]
            if reference is not None:
                paths += [
                    (reference.folder, "adapters", number, ""),
                    (reference.shared, "references", number, SHARED_SUFFIX),
                ]
        for path, directory, number, suffix in paths:
            if path is not None:
                yield path, directory, number, suffix


def artifact_path(directory: str, number: int, digest: str, suffix: str = "") -> str:
    """Return the path of an artifact, which is named by its content.

    >>> artifact_path("heads", 3, "0123456789abcdef")
    'heads/0003-0123456789ab.safetensors'
    """
    extension = "" if directory == "adapters" else ".safetensors"
    return f"{directory}/{number:04d}-{digest[:12]}{suffix}{extension}"


def files_of(path: str) -> tuple[str, ...]:
    """Return the paths of the files of an artifact."""
    if path.startswith("adapters/"):
        return tuple(f"{path}/{name}" for name in ADAPTER_FILES)
    return (path,)


def is_artifact_name(directory: str, name: str) -> bool:
    """Return whether this library could have given this name to an artifact in a directory."""
    is_folder = not name.endswith(".safetensors")
    return _NAME.fullmatch(name) is not None and is_folder == (directory == "adapters")


def is_model(folder: Path) -> bool:
    """Return whether a folder has a manifest, readable or not."""
    return folder.is_dir() and SafeFolder(folder).stat(MANIFEST) is not None


def read_manifest(folder: Path, name: str = MANIFEST) -> Manifest:
    """Read and check the manifest of a model folder.

    Raises:
        StorageError: If there is none, or it is damaged, inconsistent or of another version.
    """
    safe = SafeFolder(folder)
    return parse_manifest(read_manifest_bytes(safe, name), safe.path / name)


def read_manifest_bytes(folder: SafeFolder, name: str = MANIFEST) -> bytes:
    """Read a manifest without checking it."""
    if not folder.path.is_dir() or folder.stat(name) is None:
        raise StorageError(
            f"{folder.path} holds no model ({name} is missing); give the folder of a saved model"
            if name == MANIFEST
            else f"{folder.path} holds no previous state ({name} is missing)"
        )
    return folder.read(name, limit=MAX_BYTES)


def read_previous_bytes(folder: SafeFolder) -> bytes:
    """Read the manifest before the last save, also if that save was interrupted at its end."""
    with contextlib.suppress(StorageError):  # usually there is none
        replaced = folder.read(REPLACED, limit=MAX_BYTES)
        if replaced != read_manifest_bytes(folder):
            return replaced
    return read_manifest_bytes(folder, PREVIOUS)


def check_manifest(manifest: Manifest, checked: Manifest | None, path: Path) -> None:
    """Check a manifest before it is written, as it will be checked when it is read.

    Args:
        manifest: The manifest.
        checked: One that was checked before; the entries that it also has are not read again.
        path: Where it will be written.
    """
    new = manifest
    if checked is not None:
        tasks, adapters, files = {*checked.tasks}, checked.adapters, checked.files
        new = replace(
            manifest,
            tasks=tuple(task for task in manifest.tasks if task not in tasks),
            adapters={n: a for n, a in manifest.adapters.items() if adapters.get(n) != a},
            files={name: e for name, e in manifest.files.items() if files.get(name) != e},
        )
    try:
        schema.read(Manifest, json.loads(new.encode()), str(path))
    except RememberingError as error:
        raise StorageError(str(error)) from error
    problem = _problem(manifest, new)
    if problem:
        raise StorageError(f"{path} would be damaged: {problem}")


def parse_manifest(data: bytes, path: Path) -> Manifest:
    """Decode and check a manifest; `path` is named in errors."""
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"{path} is damaged ({reason(error)}); restore it from a copy"
        ) from error
    version = content.get("version") if isinstance(content, dict) else None
    if type(version) is int and version != VERSION:
        raise StorageError(
            f"the model in {path.parent} has version {version} of the format, but this program "
            f"reads version {VERSION}; "
            + ("update the program" if version > VERSION else "use the program that wrote it")
        )
    try:
        manifest = schema.read(Manifest, content, str(path))
    except RememberingError as error:
        raise StorageError(str(error)) from error
    problem = _problem(manifest, manifest)
    if problem:
        raise StorageError(f"{path} is damaged: {problem}; restore it from a copy")
    return manifest


def _problem(manifest: Manifest, new: Manifest) -> str | None:
    """Return what is inconsistent, beyond what types can express.

    Args:
        manifest: The manifest.
        new: The same with the entries alone whose paths have not been checked yet.
    """
    numbers = [task.number for task in manifest.tasks]
    names = [task.name for task in manifest.tasks]
    served = {str(task.adapter) for task in manifest.tasks}
    if not 0 <= manifest.next_number < 2**31:
        return f"next_number = {manifest.next_number} is out of range"[:80]
    if not 0 < manifest.generation < 2**63 or not re.fullmatch("[0-9a-f]{32}", manifest.model_id):
        return "model_id and generation do not identify a save"
    if not all(0 <= n < manifest.next_number for n in numbers) or len({*numbers}) < len(numbers):
        return f"the task numbers {numbers}"[:80] + " are not distinct numbers below next_number"
    if len({*names}) < len(names):
        return "two tasks have the same name"
    if not all(_NUMBER.fullmatch(n) and int(n) < manifest.next_number for n in manifest.adapters):
        return f"the adapter numbers {[*manifest.adapters]}"[:80] + " are not below next_number"
    for task in manifest.tasks:
        if str(task.adapter) not in manifest.adapters:
            return f"task {task.name!r} is served by adapter {task.adapter}, which does not exist"
        kinds = {type(label) for label in task.classes}
        if len({*task.classes}) < max(1, len(task.classes)) or len(kinds) > 1:
            return f"the classes of task {task.name!r} are not distinct labels of one type"
        if not 0 < task.images < 2**63:
            return f"task {task.name!r} has {task.images} images"
    if set(manifest.adapters) != served:
        return f"adapter {min({*manifest.adapters} - served)} serves no task"
    return _part_problem(manifest) or _path_problem(new) or _file_problem(manifest)


def _part_problem(manifest: Manifest) -> str | None:
    """Return which adapter or task has other parts than the settings require."""
    gaussian = manifest.settings.classifier.kind == "gaussian"
    for number, adapter in manifest.adapters.items():
        parts = (adapter.head is None, adapter.classifier is not None)
        if parts != (gaussian, gaussian):
            needed = "a classifier and no head" if gaussian else "a head and no classifier"
            return f"adapter {number} must have {needed}"
        if adapter.reference is not None and not gaussian:
            return f"adapter {number} has a reference, but no classifier"
    for task in manifest.tasks:
        adapter = manifest.adapters[str(task.adapter)]
        for name in ("classifier", "reference"):
            if (getattr(task, name) is None) != (getattr(adapter, name) is None):
                return f"task {task.name!r} and adapter {task.adapter} differ in having a {name}"
    return None


def _path_problem(manifest: Manifest) -> str | None:
    for path, directory, number, suffix in manifest.artifacts():
        digest = path[len(f"{directory}/{number:04d}-") :][:12]
        if not _DIGEST.fullmatch(digest) or path != artifact_path(
            directory, number, digest, suffix
        ):
            return f"{path!r} is not a path of a file in {directory}"
    for name, entry in manifest.files.items():
        if not _SHA256.fullmatch(entry.sha256) or not 0 < entry.bytes < 2**40:
            return f"the entry of {name} is not a SHA-256 and a size"
    return None


def _file_problem(manifest: Manifest) -> str | None:
    expected = {name for path, *_ in manifest.artifacts() for name in files_of(path)}
    if expected != set(manifest.files):
        return f"{min(expected ^ set(manifest.files))!r} is not both used and listed"
    return None
