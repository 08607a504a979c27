"""Parts of a model as files: packed, checked, mapped and unpacked.

Tensors that are only stacked or copied when they are used stay maps of their files. The others are
copied into torch's own memory: how a product is rounded depends on where tensors lie, and what was
stored must answer with the same bits as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.adapters.peft_format import CONFIG_FILE, WEIGHTS_FILE, unpack_peft
from remembering.backbones.backbone import Backbone
from remembering.errors import RememberingError
from remembering.runtime.files import sha256
from remembering.state import ReplayMemory
from remembering.storage.manifest import MANIFEST, Manifest


@dataclass(frozen=True)
class Artifact:
    """A part of a model as files: what never changes is packed and hashed once."""

    value: object
    """What was packed; None for adapters, which their number tells apart."""
    stem: str
    """The file, or the folder of the files."""
    digests: dict[str, str]
    """SHA-256 of each file, by its path in the model folder."""


class StoredAdapter:
    """Reads an adapter through a map of its file; checks each time that it is what was saved."""

    def __init__(self, folder: Path, stem: str, manifest: Manifest, backbone: Backbone):
        self._folder, self._backbone = folder / stem, backbone
        self._config = checked(folder, f"{stem}/{CONFIG_FILE}", manifest)
        size = len(checked(folder, f"{stem}/{WEIGHTS_FILE}", manifest))
        self._digest = manifest.files[f"{stem}/{WEIGHTS_FILE}"]
        try:
            self._weights = torch.from_file(
                str(self._folder / WEIGHTS_FILE), size=size, dtype=torch.uint8
            )
        except RuntimeError as error:  # removed, or empty
            raise RememberingError(f"{self._folder} cannot be used: {error}") from error

    def __call__(self) -> Adapter:
        return unpack_peft(self.files(), self._folder, self._backbone)

    def files(self) -> dict[str, bytes]:
        """The two files of the adapter."""
        path = self._folder / WEIGHTS_FILE
        try:
            size = path.stat().st_size
        except FileNotFoundError:  # a writer removed it; the map still has it
            size = len(self._weights)
        # Reading a map past the end of its file would end the process.
        data = self._weights.numpy().tobytes() if size >= len(self._weights) else b""
        if sha256(data) != self._digest:
            raise RememberingError(
                f"{path} has changed since the model was loaded (its SHA-256 differs); restore it "
                "from a copy and load the model again"
            )
        return {CONFIG_FILE: self._config, WEIGHTS_FILE: data}


def pack_expert(expert: Mapping[str, Tensor]) -> bytes:
    packed: bytes = save_tensors({key: value.cpu() for key, value in expert.items()})
    return packed


def pack_head(head: Head) -> bytes:
    tensors = {"columns": head.columns}
    if head.trained:
        tensors |= {"weight": head.weight.cpu(), "bias": head.bias.cpu()}
    packed: bytes = save_tensors(tensors, metadata={"classes": json.dumps(head.classes)})
    return packed


def unpack_head(tensors: dict[str, Tensor], metadata: dict[str, Any], backbone: Backbone) -> Head:
    classes, tensors = tuple(metadata["classes"]), copies(tensors)
    if "weight" not in tensors:
        return Head.frozen(classes, tensors["columns"].tolist(), backbone)
    weight, bias = (tensors[key].to(backbone.device) for key in ("weight", "bias"))
    if weight.shape != (len(classes), backbone.dim) or bias.shape != (len(classes),):
        raise ValueError("its shape does not fit its classes and the backbone")
    return Head(classes, weight, bias, tensors["columns"])


def pack_memory(memory: ReplayMemory) -> bytes:
    labels = json.dumps(memory.labels)
    packed: bytes = save_tensors({"images": memory.images}, metadata={"labels": labels})
    return packed


def unpack_memory(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> ReplayMemory:
    return ReplayMemory(tensors["images"], tuple(metadata["labels"]))


def on(tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {key: value.to(device) for key, value in tensors.items()}


Build = Callable[[dict[str, Tensor], dict[str, Any]], Any]
"""From the tensors of a file and its metadata to what it holds."""


def unpack(folder: Path, name: str, manifest: Manifest, build: Build) -> Any:
    """What is in a file; its tensors are maps of it."""
    checked(folder, name, manifest)
    try:
        with safe_open(folder / name, "pt") as file:
            metadata = {key: json.loads(value) for key, value in (file.metadata() or {}).items()}
            return build({key: file.get_tensor(key) for key in file.keys()}, metadata)  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise RememberingError(f"{folder / name} cannot be used: {error}") from error


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """In torch's own memory: how a product is rounded depends on where tensors lie."""
    return {key: value.clone() for key, value in tensors.items()}


def checked(folder: Path, name: str, manifest: Manifest) -> bytes:
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
