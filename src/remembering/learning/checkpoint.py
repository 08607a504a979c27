"""A task half learned, on disk: training goes on from there with the same bits.

The order of the images and the replayed batches depend only on the seed, the task and the step (see
seeding.py), so the parameters, the optimiser's state and the step are all that has to be kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from remembering import schema
from remembering.config import Settings
from remembering.runtime.files import sha256, write_atomic

NAME = "progress.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """Where the progress of the task under way is kept.

    Attributes:
        path: the file; removed when its task is done.
        steps: save after so many steps, beside after each epoch; 0 is after epochs only.
        resume: whether to go on from what is there.
    """

    path: Path
    steps: int = 0
    resume: bool = True

    def due(self, step: int, steps_per_epoch: int) -> bool:
        """Whether to save after `step` steps."""
        return step % steps_per_epoch == 0 or bool(self.steps and step % self.steps == 0)

    def write(
        self, key: str, step: int, parameters: list[Tensor], optimizer: torch.optim.Optimizer
    ) -> None:
        """Keep the state after `step` steps of the training that `key` stands for."""
        tensors = {f"parameter.{i}": p.detach().cpu() for i, p in enumerate(parameters)}
        for i, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{name}": value.cpu() for name, value in state.items()}
        metadata = {"key": key, "step": str(step), "sha256": digest(tensors.values())}
        metadata["names"] = " ".join(tensors)
        write_atomic(self.path, save(tensors, metadata=metadata))

    def read(self, key: str, parameters: list[Tensor], optimizer: torch.optim.Optimizer) -> int:
        """Put back the state of the training that `key` stands for; returns the steps done.

        A file of another training, or a damaged one, counts as none: the task is then learned from
        its beginning, which ends with the same bits.
        """
        if not self.resume:
            return 0
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("key") != key:
                    return 0
                tensors = {name: file.get_tensor(name) for name in metadata["names"].split()}
        except (OSError, SafetensorError, KeyError):
            return 0
        if digest(tensors.values()) != metadata.get("sha256"):
            return 0
        with torch.no_grad():
            for i, parameter in enumerate(parameters):
                parameter.copy_(tensors[f"parameter.{i}"])
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, i, kind = name.split(".")
                state.setdefault(int(i), {})[kind] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        return int(metadata["step"])

    def of(self, part: str) -> Checkpoint:
        """Another training within the same task, in a file of its own."""
        return replace(self, path=self.path.with_name(f"{self.path.stem}-{part}.safetensors"))

    def remove(self) -> None:
        """The task is done."""
        for path in self.path.parent.glob(f"{self.path.stem}*.safetensors"):
            path.unlink()


def training_key(settings: Settings, number: int, tensors: list[Tensor]) -> str:
    """What a training depends on: settings, which task, its data, and what it is distilled from."""
    parts = [schema.write(settings), number, digest(tensors)]
    return sha256(json.dumps(parts, sort_keys=True).encode())


def digest(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of the bytes of tensors, one after the other."""
    result = hashlib.sha256()
    for tensor in tensors:  # without a copy: features may be more than memory holds
        result.update(tensor.detach().cpu().contiguous().numpy().data)
    return result.hexdigest()
