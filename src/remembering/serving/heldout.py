"""Held-out images of learned tasks, and how accurate each version of the model is on them.

heldout/NUMBER.images           encoded images of a task (safetensors)
heldout/NUMBER-IMAGES.images    after images were added to it, so that this can be undone
heldout/accuracy.json           position of each image's class, and the accuracies, by file
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from remembering import schema
from remembering.data.task import Label
from remembering.errors import RememberingError
from remembering.inference.predict import predict
from remembering.runtime.progress import Progress
from remembering.serving.inputs import EncodedImages, LabelledBytes
from remembering.serving.jobs import (
    MAX_RECORD,
    MAX_STORED_IMAGES,
    decode_images,
    encode_images,
    plain_folder,
)
from remembering.serving.served import Served
from remembering.state import TaskRecord

EVERY = 5
"""One of so many images of a class is held out."""
MAX_IMAGES = 100
"""Held-out images of a task that are kept."""
MEASURED_IMAGES = 1000
"""Held-out images of all tasks that are predicted after a change."""
MAX_POINTS = 200
"""Versions whose accuracy is kept."""
_RECORD = "accuracy.json"


@dataclass(frozen=True)
class Point:
    """Accuracy on the held-out images of a task."""

    version: int
    accuracy: float


@dataclass(frozen=True)
class HeldOutTask:
    """Held-out images of a task.

    Attributes:
        images: Number of images that the task was learned from; identifies the task together with
            its number.
        targets: Position of each held-out image's label among the classes of the task.
        points: Accuracy after each version since the task was learned.
    """

    images: int
    targets: tuple[int, ...] = ()
    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class _Record:
    tasks: dict[str, HeldOutTask] = field(default_factory=dict)


def split(labels: Sequence[Label]) -> tuple[list[int], list[int]]:
    """Return positions for training and positions that are held out.

    Every fifth image of a class is held out, and one of three or four.

    >>> split(["a"] * 5 + ["b"] * 3 + ["c"] * 2)
    ([0, 1, 2, 3, 5, 6, 8, 9], [4, 7])
    """
    held: list[int] = []
    for label in dict.fromkeys(labels):
        own = [i for i, other in enumerate(labels) if other == label]
        held += own[EVERY - 1 :: EVERY] or own[2:][-1:]
    kept = {*held}
    return [i for i in range(len(labels)) if i not in kept], sorted(held)


def chosen(batch: LabelledBytes, positions: Sequence[int]) -> LabelledBytes:
    """Return some of the images of a batch."""
    return LabelledBytes(
        tuple(batch.images[i] for i in positions), tuple(batch.labels[i] for i in positions)
    )


class HeldOut:
    """Held-out images and accuracies of the tasks that this service learned.

    Args:
        folder: Where they are stored.

    Raises:
        StorageError: If the folder, or the workspace that contains it, is not a plain directory.
    """

    def __init__(self, folder: Path):
        self._folder = plain_folder(folder)
        self._tasks: Mapping[str, HeldOutTask] = {}

    def restore(self) -> None:
        """Read what an earlier server measured; damaged records are ignored."""
        try:
            content = json.loads(self._folder.read(_RECORD, limit=MAX_RECORD))
            self._tasks = schema.read(_Record, content, str(self._folder.path / _RECORD)).tasks
        except (OSError, ValueError, RecursionError, RememberingError):
            self._tasks = {}

    def add(self, record: TaskRecord, batch: LabelledBytes) -> None:
        """Keep the held-out images of a new task."""
        self._keep(str(record.number), record, batch, ())

    def extend(self, before: TaskRecord, record: TaskRecord, batch: LabelledBytes) -> None:
        """Keep the held-out images of a task that images were added to."""
        task, images = self.of(before), self._read(before)
        if task is not None and len(images) == len(task.targets):
            labels = tuple(record.classes[target] for target in task.targets)
            batch = LabelledBytes((*images, *batch.images), (*labels, *batch.labels))
        points = task.points if task else ()
        self._keep(f"{record.number}-{record.images}", record, batch, points)

    def of(self, record: TaskRecord) -> HeldOutTask | None:
        """Return the held-out images and accuracies of a task, if there are any."""
        task = self._tasks.get(self._key(record))
        return task if task and task.images == record.images else None

    def measure(self, served: Served, progress: Progress) -> None:
        """Predict the held-out images of all tasks, and record the accuracies of this version."""
        state, tasks = served.model.state, dict(self._tasks)
        stride = -(-len(state.tasks) * MAX_IMAGES // MEASURED_IMAGES) or 1
        for record in state.tasks:
            task = self.of(record)
            if task is None or not task.targets:
                continue
            images, targets = self._read(record)[::stride], task.targets[::stride]
            if not images:
                continue
            prediction = predict(
                state, served.model.backbone, EncodedImages(images), progress=progress
            )
            correct = sum(
                label == record.classes[target]
                for label, target in zip(prediction.labels, targets, strict=True)
            )
            point = Point(served.version, correct / len(targets))
            points = (*(p for p in task.points if p.version < served.version), point)
            tasks[self._key(record)] = HeldOutTask(task.images, task.targets, points[-MAX_POINTS:])
        self._tasks = tasks
        self._save(_RECORD, json.dumps(_Record(tasks), default=vars).encode())

    def _save(self, name: str, data: bytes) -> None:
        self._folder.create()
        self._folder.write(name, data)

    def _keep(
        self, key: str, record: TaskRecord, batch: LabelledBytes, points: tuple[Point, ...]
    ) -> None:
        if not batch.images:
            return
        # Spread over all classes, which come one after the other.
        stride = -(-len(batch.images) // MAX_IMAGES)
        batch = chosen(batch, range(0, len(batch.images), stride))
        targets = tuple(record.classes.index(label) for label in batch.labels)
        self._save(f"{key}.images", encode_images(batch.images))
        self._tasks = {**self._tasks, key: HeldOutTask(record.images, targets, points)}

    def _key(self, record: TaskRecord) -> str:
        extended = f"{record.number}-{record.images}"
        return extended if extended in self._tasks else str(record.number)

    def _read(self, record: TaskRecord) -> tuple[bytes, ...]:
        """Return the held-out images of a task; none if they are missing or damaged."""
        try:
            name = f"{self._key(record)}.images"
            return decode_images(self._folder.read(name, limit=MAX_STORED_IMAGES))
        except (OSError, ValueError):
            return ()
