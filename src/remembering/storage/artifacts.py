"""Artifacts: the parts of a state as files, encoded, verified and decoded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.adapters.peft_format import CONFIG_FILE, WEIGHTS_FILE, unpack_peft
from remembering.backbones.backbone import Backbone
from remembering.data.task import Label
from remembering.errors import RememberingError, StorageError, reason
from remembering.routing import Expert
from remembering.routing.domain import Domain
from remembering.routing.share import Parts, check_share, share_bytes, share_dims
from remembering.runtime.files import SafeFolder, copy_of_map, read_all, sha256
from remembering.runtime.tensors import decode_tensors
from remembering.state import ReplayMemory
from remembering.storage.manifest import FileEntry, Manifest, files_of


def artifact_key(kind: str, number: int = 0) -> str:
    """Return what identifies an artifact within a state, whatever its content."""
    return f"{kind}/{number}"


@dataclass(frozen=True)
class Artifact:
    """A part of a state that is encoded and hashed already.

    Attributes:
        value: What was encoded; compared by identity.
        path: The file, or the directory of the files.
        files: The files by their path in the model folder.
    """

    value: object
    path: str
    files: Mapping[str, FileEntry]

    @classmethod
    def listed(cls, value: object, path: str, manifest: Manifest) -> Artifact:
        """Return an artifact that a manifest lists."""
        return cls(value, path, {name: manifest.files[name] for name in files_of(path)})


def read_verified(folder: SafeFolder, name: str, entry: FileEntry) -> bytes:
    """Read a file that must have the recorded size and SHA-256."""
    return verified(folder, name, entry, folder.read(name, size=entry.bytes))


def verified(folder: SafeFolder, name: str, entry: FileEntry, data: bytes) -> bytes:
    """Return the bytes of a file if they are those that were saved."""
    if sha256(data) != entry.sha256:
        raise StorageError(
            f"{folder.path / name} is not the file that was saved (its SHA-256 differs); restore "
            "it from a copy"
        )
    return data


class StoredFile:
    """A file that is read on demand and verified each time.

    A memory map keeps the content reachable after a writer has removed the file, without holding a
    descriptor. While the file exists it is read through a descriptor. Reading a map beyond the end
    of a truncated file would kill the process; see `copy_of_map`.

    Raises:
        StorageError: If the file is not the one that was saved; also when it is called.
    """

    def __init__(self, folder: SafeFolder, name: str, entry: FileEntry):
        self._folder, self.name, self._entry = folder, name, entry
        with folder.open(name) as (descriptor, size):
            if size != entry.bytes:
                folder.read(name, size=entry.bytes)  # raises
            verified(folder, name, entry, read_all(descriptor, size))
            self._map = torch.from_file(f"/dev/fd/{descriptor}", size=size, dtype=torch.uint8)

    def __deepcopy__(self, memo: object) -> StoredFile:
        return self  # immutable

    def __call__(self) -> bytes:
        try:
            return read_verified(self._folder, self.name, self._entry)
        except StorageError as error:
            if self._folder.stat(self.name) is None:  # removed by a writer
                data = copy_of_map(self._map.numpy().data)
                if sha256(data) == self._entry.sha256:
                    return data
            elif error.__cause__ is not None:  # it could not be read at all
                raise
            raise StorageError(
                f"{self._folder.path / self.name} has changed since the model was loaded; restore "
                "it from a copy and load the model again"
            ) from error


class StoredAdapter:
    """Reads an adapter from its files each time it is called."""

    def __init__(self, folder: SafeFolder, path: str, manifest: Manifest, backbone: Backbone):
        self._path, self._backbone = folder.path / path, backbone
        config, weights = files_of(path)
        self._config = read_verified(folder, config, manifest.files[config])
        self._weights = StoredFile(folder, weights, manifest.files[weights])

    def __call__(self) -> Adapter:
        return decode_adapter(self.files(), self._path, self._backbone)

    def files(self) -> dict[str, bytes]:
        """Return the content of the two files."""
        return {CONFIG_FILE: self._config, WEIGHTS_FILE: self._weights()}

    @property
    def shape(self) -> tuple[Any, Any]:
        """Rank and layers as configured, without reading the weights."""
        try:
            config = json.loads(self._config)
            return config["r"], config.get("layers_to_transform")
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(
                f"{self._path / CONFIG_FILE} is not a LoRA configuration ({reason(error)})"
            ) from error


class StoredReplay:
    """Reads replay images from their file each time it is called."""

    def __init__(self, folder: SafeFolder, path: str, manifest: Manifest):
        self._path = folder.path / path
        self.file = StoredFile(folder, path, manifest.files[path])
        memory = decode_memory(self.file(), self._path)
        self.labels, self.nbytes = memory.labels, memory.nbytes
        self.held_out = memory.held_out

    def __call__(self) -> Tensor:
        return decode_memory(self.file(), self._path).images


class StoredShare:
    """Reads the share of a task from its file each time it is called."""

    def __init__(self, folder: SafeFolder, path: str, manifest: Manifest):
        self._path = folder.path / path
        self.file = StoredFile(folder, path, manifest.files[path])
        parts = self()
        self.dims, self.nbytes = share_dims(parts), share_bytes(parts)

    def __call__(self) -> Parts:
        return decode_share(self.file(), self._path)


def decode_adapter(files: Mapping[str, bytes], path: Path, backbone: Backbone) -> Adapter:
    """Return the adapter in PEFT's two files."""
    adapter = unpack_peft(files, path, backbone)
    if not (adapter.a.isfinite().all() and adapter.b.isfinite().all()):
        raise unusable(path, "it contains NaN or infinite values")
    return adapter


def encode_expert(expert: Expert) -> bytes:
    """Return the file of an expert, or of what all experts have in common."""
    data: bytes = save_tensors({key: value.cpu().contiguous() for key, value in expert.items()})
    return data


def decode_expert(data: bytes, path: Path, device: torch.device) -> dict[str, Tensor]:
    """Return the expert in a file."""
    tensors, _ = _decode(data, path)
    return {key: value.to(device) for key, value in tensors.items()}


def decode_domain(data: bytes, path: Path) -> Domain:
    """Return the domain in a file; `encode_expert` writes it."""
    tensors, _ = _decode(data, path)
    if set(tensors) != {field.name for field in fields(Domain)}:
        raise unusable(path, "it does not contain the tensors of a domain")
    return Domain(**tensors)


def encode_share(parts: Parts) -> bytes:
    """Return the file of a share."""
    return encode_expert({f"{p}.{k}": t for p, part in parts.items() for k, t in part.items()})


def decode_share(data: bytes, path: Path) -> Parts:
    """Return the share in a file."""
    tensors, _ = _decode(data, path)
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part, _, key = name.partition(".")
        parts.setdefault(part, {})[key] = tensor
    try:
        check_share(parts)
    except ValueError as error:
        raise unusable(path, str(error)) from error
    return parts


def encode_head(head: Head) -> bytes:
    """Return the file of a head; a frozen head has no weights of its own."""
    tensors = {"columns": head.columns}
    if head.trained:
        tensors |= {"weight": head.weight.cpu(), "bias": head.bias.cpu()}
    data: bytes = save_tensors(tensors, metadata={"classes": json.dumps(head.classes)})
    return data


def decode_head(data: bytes, path: Path, backbone: Backbone) -> Head:
    """Return the head in a file."""
    tensors, metadata = _decode(data, path)
    classes = _labels({"classes": _json(metadata, "classes", path)}, "classes", path)
    expected = {"columns"} if "weight" not in tensors else {"columns", "weight", "bias"}
    columns = tensors.get("columns")
    if set(tensors) != expected or columns is None or not classes:
        raise unusable(path, "it does not contain the tensors of a head")
    if columns.dtype != torch.int64 or columns.shape != (len(classes),):
        raise unusable(path, "its columns do not fit its classes")
    if "weight" not in tensors:
        if len({*columns.tolist()}) < len(classes) or int(columns.min()) < 0:
            raise unusable(path, "its columns are not distinct outputs of the classifier")
        try:
            return Head.frozen(classes, columns.tolist(), backbone)
        except RememberingError as error:
            raise unusable(path, str(error)) from error
    weight, bias = tensors["weight"], tensors["bias"]
    shapes = (weight.shape, bias.shape) == ((len(classes), backbone.dim), (len(classes),))
    if not shapes or {weight.dtype, bias.dtype} != {torch.float32}:
        raise unusable(path, "its shape does not fit its classes and the backbone")
    if columns.tolist() != list(range(len(classes))):
        raise unusable(path, "its columns do not fit its classes")
    return Head(classes, weight.to(backbone.device), bias.to(backbone.device), columns)


def encode_memory(memory: ReplayMemory) -> bytes:
    """Return the file of a replay memory."""
    # One entry only: safetensors writes several in random order, which would change the hash.
    text = json.dumps({"labels": memory.labels, "held_out": memory.held_out})
    data: bytes = save_tensors({"images": memory.images}, metadata={"memory": text})
    return data


def decode_memory(data: bytes, path: Path) -> ReplayMemory:
    """Return the replay memory in a file."""
    tensors, metadata = _decode(data, path)
    found, images = _json(metadata, "memory", path), tensors.get("images")
    found = found if isinstance(found, dict) else {}
    labels, held_out = _labels(found, "labels", path, distinct=False), found.get("held_out")
    if len(tensors) != 1 or images is None or images.dtype != torch.uint8 or images.ndim != 4:
        raise unusable(path, "it does not contain images (n, channels, height, width) of uint8")
    if len(images) != len(labels) or images.shape[1] not in (1, 3) or not images.numel():
        raise unusable(path, f"images of shape {tuple(images.shape)} do not fit its labels")
    if type(held_out) is not int or not 0 <= held_out <= len(labels):
        raise unusable(path, "its metadata has no valid held_out")
    return ReplayMemory(images, labels, held_out)


def _decode(data: bytes, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        tensors, metadata = decode_tensors(data)
    except ValueError as error:
        raise unusable(path, reason(error)) from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise unusable(path, f"{name} contains NaN or infinite values")
    return tensors, metadata


def _json(metadata: Mapping[str, str], key: str, path: Path) -> Any:
    try:
        return json.loads(metadata[key])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise unusable(path, f"its metadata has no {key}") from error


def _labels(
    found: Mapping[str, Any], key: str, path: Path, *, distinct: bool = True
) -> tuple[Label, ...]:
    labels: Any = found.get(key)
    kinds = {type(label) for label in labels} if isinstance(labels, list) else {None}
    if not (kinds <= {str} or kinds <= {int}) or (distinct and len({*labels}) < len(labels)):
        raise unusable(path, f"its {key} are not labels of one type")
    return tuple(labels)


def unusable(path: Path, problem: str) -> StorageError:
    """Return the error for a file whose hash is correct but whose content is invalid."""
    return StorageError(f"{path} cannot be used: {problem}")
