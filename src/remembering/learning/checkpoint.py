"""Checkpoints within a task: training resumes from them with the same bits.

The order of the images and the replayed batches depend only on the seed, the task and the step (see
`runtime.seeding`), so parameters, optimiser state and step number are a complete checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from remembering import schema
from remembering.config import Settings
from remembering.errors import StorageError
from remembering.runtime.files import SafeFolder, sha256, write_atomic
from remembering.runtime.tensors import decode_tensors

NAME = "progress.safetensors"


def is_checkpoint(name: str, stem: str = Path(NAME).stem) -> bool:
    """Return whether a file name is that of a checkpoint."""
    return re.fullmatch(rf"{re.escape(stem)}(-[a-z-]+)?\.safetensors", name) is not None


@dataclass(frozen=True)
class Checkpoint:
    """Where the progress of a task in training is kept.

    Attributes:
        path: The file; removed when the task is learned.
        steps: Save every so many steps, besides after each epoch. If 0, after epochs only.
        resume: Whether to resume from an existing file.
    """

    path: Path
    steps: int = 0
    resume: bool = True

    def due(self, step: int, steps_per_epoch: int) -> bool:
        """Return whether to save after `step` steps."""
        return step % steps_per_epoch == 0 or bool(self.steps and step % self.steps == 0)

    def write(
        self, key: str, step: int, parameters: list[Tensor], optimizer: torch.optim.Optimizer
    ) -> None:
        """Save the state after `step` steps of the training run that `key` identifies."""
        tensors = {f"parameter.{i}": p.detach().cpu() for i, p in enumerate(parameters)}
        for i, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{name}": value.cpu() for name, value in state.items()}
        metadata = {"key": key, "step": str(step), "sha256": digest(tensors.values())}
        metadata["names"] = " ".join(tensors)
        write_atomic(self.path, save(tensors, metadata=metadata))

    def read(self, key: str, parameters: list[Tensor], optimizer: torch.optim.Optimizer) -> int:
        """Restore the state of the training run that `key` identifies.

        A file of another run, or a damaged one, is ignored: training then starts from the
        beginning and ends with the same bits.

        Returns:
            The number of steps done.
        """
        if not self.resume:
            return 0
        try:
            data = SafeFolder(self.path.parent).read(self.path.name)
            tensors, metadata = decode_tensors(data)
            if metadata.get("key") != key:
                return 0
            tensors = {name: tensors[name] for name in metadata["names"].split()}
            state, step = _optimizer_state(tensors), int(metadata["step"])
            stored = [tensors[f"parameter.{i}"] for i in range(len(parameters))]
            intact = digest(tensors.values()) == metadata.get("sha256")
        except (StorageError, ValueError, KeyError, TypeError):  # TypeError: bfloat16
            return 0
        if step < 0 or not intact or not _fits(stored, state, parameters):
            return 0
        with torch.no_grad():
            for parameter, tensor in zip(parameters, stored, strict=True):
                parameter.copy_(tensor)
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        return step

    def part(self, name: str) -> Checkpoint:
        """Return the checkpoint of another training run within the same task."""
        return replace(self, path=self.path.with_name(f"{self.path.stem}-{name}.safetensors"))

    def remove(self) -> None:
        """Remove the files, after the task is learned."""
        folder = SafeFolder(self.path.parent)
        for name in folder.entries():
            if is_checkpoint(name, self.path.stem):
                folder.remove(name)


def _fits(
    stored: list[Tensor], state: dict[int, dict[str, Tensor]], parameters: list[Tensor]
) -> bool:
    """Return whether the parameters and the state of AdamW have the shapes of this training run."""
    expected = {
        i: {"step": (), "exp_avg": (*p.shape,), "exp_avg_sq": (*p.shape,)}
        for i, p in enumerate(parameters)
    }
    found = {i: {k: (*t.shape,) for k, t in kinds.items()} for i, kinds in state.items()}
    return found == expected and [t.shape for t in stored] == [p.shape for p in parameters]


def _optimizer_state(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, i, kind = name.split(".")
            state.setdefault(int(i), {})[kind] = value
    return state


def training_key(settings: Settings, number: int, tensors: list[Tensor]) -> str:
    """Hash everything that a training run depends on: settings, task number, data, teachers."""
    parts = [schema.write(settings), number, digest(tensors)]
    return sha256(json.dumps(parts, sort_keys=True).encode())


def digest(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the bytes of tensors, one after the other."""
    result = hashlib.sha256()
    for tensor in tensors:  # no copy: features may exceed the memory
        result.update(tensor.detach().cpu().contiguous().numpy().data)
    return result.hexdigest()
