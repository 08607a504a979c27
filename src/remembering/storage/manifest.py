"""What is in a model folder: everything about a model but its tensors, and the files of those."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from remembering import schema
from remembering.config import Settings
from remembering.errors import RememberingError

VERSION = 4
MANIFEST = "manifest.json"


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
    feature_adapter: str | None = None
    """The adapter through which the router sees."""
    tasks: tuple[TaskEntry, ...] = ()
    adapters: dict[str, AdapterEntry] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of every file, by its path in the folder."""

    def text(self) -> str:
        """JSON, a line for each task, adapter and file: a thousand tasks must be quick to write."""
        members = []
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, dict):
                entries = [f"{json.dumps(key)}: {_line(entry)}" for key, entry in value.items()]
                text = "{" + ",".join(f"\n  {entry}" for entry in entries) + "\n }"
            elif isinstance(value, tuple):
                text = "[" + ",".join(f"\n  {_line(entry)}" for entry in value) + "\n ]"
            else:
                text = _line(value)
            members.append(f' "{item.name}": {text}')
        return "{\n" + ",\n".join(members) + "\n}\n"


def _line(value: Any) -> str:
    return json.dumps(value, default=vars, allow_nan=False)


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
    manifest = schema.read(Manifest, data, str(path))
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
