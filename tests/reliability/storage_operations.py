"""Operations on a saved model, for tests that make each of their file operations fail."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from support import make_task

from remembering.backbones.backbone import Backbone
from remembering.config import Settings
from remembering.errors import StorageError
from remembering.learning.checkpoint import NAME, Checkpoint
from remembering.model import RememberingTransformer


@dataclass
class Session:
    """A model, its folder, and the steps of an operation that are done; each is done once."""

    model: RememberingTransformer
    folder: Path
    done: set[str] = field(default_factory=set)

    def once(self, step: str, function: Callable[[], object]) -> None:
        if step not in self.done:
            function()
            self.done.add(step)

    def save(self) -> None:
        self.model.save(self.folder)


def learn(session: Session) -> None:
    checkpoint = Checkpoint(session.folder / NAME, steps=1)
    if "task 2" not in [task.name for task in session.model.tasks]:
        session.model.learn(make_task(2, ("a2", "b2")), checkpoint=checkpoint)
    session.save()
    checkpoint.remove()


def forget(session: Session) -> None:
    if "task 0" in [task.name for task in session.model.tasks]:
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


def save(session: Session) -> None:
    """Save to a folder that does not exist yet."""
    session.model.save(session.folder.parent / "new")


OPERATIONS = {f.__name__: f for f in (learn, forget, observe, flush, save)}


def make_model(backbone: Backbone, folder: Path) -> None:
    """Save two tasks that share an adapter, with replay images and shares of the statistics."""
    settings = Settings(epochs=1, batch_size=12, rank=1, capacity=1, memory=4)
    model = RememberingTransformer.from_backbone(backbone, settings)
    for number in range(2):
        model.learn(make_task(number, (f"a{number}", f"b{number}")))
        model.save(folder)


def digest(folder: Path) -> str:
    """Return a hash of the state in a folder, or why there is none."""
    try:
        model = RememberingTransformer.load(folder)
    except StorageError as error:
        if "holds no model" in str(error):
            return "no model"
        raise
    state, result = model.state, hashlib.sha256(repr(model.tasks).encode())
    for tensor in _tensors(model):
        result.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    result.update(repr([state.next_number, *state.memories]).encode())
    return result.hexdigest()


def _tensors(model: RememberingTransformer) -> Iterator[torch.Tensor]:
    state = model.state
    for router in (state.router, *state.classifiers.values()):
        for part in (router.shared, *router.experts.values()):
            yield from (part[name] for name in sorted(part))
    for domain in state.domains.values():
        yield from vars(domain).values()
    for adapter in state.adapters.values():
        yield from (adapter.a, adapter.b)
    yield from (memory.images for memory in state.memories.values())


def target(name: str, folder: Path) -> Path:
    """Return the folder that an operation writes to."""
    return folder.parent / "new" if name == "save" else folder


def fresh(template: Path, place: Path) -> Session:
    """Load a model from a copy of a folder."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place / "model")
    return Session(RememberingTransformer.load(place / "model"), place / "model")
