"""Operations on saved models, for tests that make each of their file operations fail."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from support import better_adapter, make_task, tensors

from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings, Settings
from remembering.errors import StorageError
from remembering.learning.checkpoint import NAME, Checkpoint
from remembering.model import RememberingTransformer

FAST: dict[str, Any] = {"epochs": 1, "batch_size": 12, "rank": 1, "memory": 4}
MODELS: dict[str, Settings] = {
    "shared": Settings(adapters="first", **FAST),
    "consolidated": Settings(adapters="first", **FAST),
    "separate": Settings(adapters="task", **FAST),
    "paper": Settings.paper(**FAST, capacity=1, router=RouterSettings("autoencoder", epochs=1)),
}
"""The default model with a shared adapter, before and after its consolidation; with an adapter per
task; and the configuration of the paper, in which the adapter of a new task absorbs the old one."""


@dataclass
class Session:
    """A model, its folder, and the steps of an operation that are done; each is done once."""

    model: RememberingTransformer
    folder: Path
    done: set[str] = field(default_factory=set)

    @property
    def tasks(self) -> list[str]:
        return [task.name for task in self.model.tasks]

    def once(self, step: str, function: Callable[[], object]) -> None:
        if step not in self.done:
            function()
            self.done.add(step)

    def save(self) -> None:
        self.model.save(self.folder)


def learn(session: Session) -> None:
    checkpoint = Checkpoint(session.folder / NAME, steps=1)
    if "task 2" not in session.tasks:
        session.model.learn(make_task(2, ("a2", "b2")), checkpoint=checkpoint)
    session.save()
    checkpoint.remove()


def forget(session: Session) -> None:
    if "task 0" in session.tasks:
        session.model.forget("task 0")
    session.save()


def observe(session: Session) -> None:
    images = make_task(1, ("a1", "b1")).images
    labels = ["a1"] * 6 + ["b1"] * 6
    session.once("observe", lambda: session.model.observe(images, labels, refine=True))
    session.once("flush", lambda: session.model.flush(discard=True))
    session.save()


def flush(session: Session) -> None:
    task = make_task(3, ("x", "y"), per_class=40)
    session.once("observe", lambda: session.model.observe(task.images, task.labels))
    session.once("flush", lambda: session.model.flush())
    session.save()


def consolidate(session: Session) -> None:
    if not session.model.state.references:
        with better_adapter():
            session.model.consolidate()
    session.save()


def rename(session: Session) -> None:
    if "a0" in session.model.tasks[0].classes:
        session.model.rename_class("task 0", "a0", "renamed")
    session.save()


def merge(session: Session) -> None:
    if "theirs" not in session.tasks:
        other = RememberingTransformer.load(session.folder)
        other.forget("task 0")
        other.rename_task("task 1", "theirs")
        session.model.merge(other)
    session.save()


def undo(session: Session) -> None:
    """Load the state before the last save, with one task less, and save it."""
    model = RememberingTransformer.load(session.folder)
    if len(model.tasks) == 2:
        model = RememberingTransformer.load(session.folder, previous=True)
    model.save(session.folder)


def save(session: Session) -> None:
    """Save to a folder that does not exist yet."""
    session.model.save(session.folder.parent / "new")


CASES: dict[str, tuple[str, Callable[[Session], None]]] = {
    f"{model} {operation.__name__}": (model, operation)
    for model, *operations in (
        ("shared", flush, consolidate),
        ("consolidated", learn, forget, observe, rename, merge, undo, save),
        ("separate", learn),
        ("paper", learn, forget),
    )
    for operation in operations
}
"""Operations by name, each with the model that it starts from."""


def make_model(name: str, backbone: Backbone, folder: Path) -> Path:
    """Save a model of two tasks, with replay images and shares of the statistics."""
    model = RememberingTransformer.from_backbone(backbone, MODELS[name])
    model.learn(make_task(0, ("a0", "b0")))
    model.save(folder)
    model.learn(make_task(1, ("a1", "b1")))
    if name == "consolidated":
        with better_adapter():
            model.consolidate()
    model.save(folder)
    return folder


def digest(folder: Path) -> str:
    """Return a hash of the state in a folder, or why there is none."""
    try:
        model = RememberingTransformer.load(folder)
    except StorageError as error:
        if "holds no model" in str(error):
            return "no model"
        raise
    state, result = model.state, hashlib.sha256(repr(model.tasks).encode())
    every = tensors(model)
    for number, share in state.shares.items():
        for part, expert in share.parts.items():
            every |= {f"share {number} {part} {key}": value for key, value in expert.items()}
    for name, tensor in sorted(every.items()):
        result.update(name.encode())
        result.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    result.update(repr([state.next_number, *state.memories]).encode())
    return result.hexdigest()


def target(case: str, folder: Path) -> Path:
    """Return the folder that an operation writes to."""
    return folder.parent / "new" if case.endswith(" save") else folder


def fresh(template: Path, place: Path) -> Session:
    """Load a model from a copy of a folder."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place / "model")
    return Session(RememberingTransformer.load(place / "model"), place / "model")
