"""Methods of a model that change what it has learned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from remembering.backbones.backbone import Backbone
from remembering.data.folders import task_folders
from remembering.data.images import ImagesLike
from remembering.data.tables import is_table
from remembering.data.task import Label, LabelsLike, Task
from remembering.errors import InvalidInputError, RememberingError
from remembering.learning.algorithm import learn
from remembering.learning.checkpoint import Checkpoint
from remembering.learning.consolidate import Consolidated, consolidate_shared
from remembering.learning.editing import add_class, add_images, remove_class
from remembering.learning.forget import Forgotten, forget
from remembering.learning.learned import Learned, doubts
from remembering.learning.merge import merge
from remembering.learning.observe import Observed, flush, observe
from remembering.learning.rename import rename_class, rename_task
from remembering.runtime.malloc import trim_malloc
from remembering.runtime.progress import SILENT, Progress, as_progress
from remembering.state import ModelState, TaskRecord


class Teachable:
    """Methods that replace the state of a model; one that fails leaves the model unchanged.

    Only `learn`, `observe`, `flush` and `consolidate` may train; the others change statistics and
    names. With `classifier.kind = "head"`, images and classes cannot be changed without training;
    the methods say so.
    """

    _backbone: Backbone
    _state: ModelState

    def learn(
        self,
        task: Task,
        *,
        progress: Progress | bool = SILENT,
        checkpoint: Checkpoint | None = None,
    ) -> Learned:
        """Learn a task. If this fails for any reason, the model is unchanged.

        Args:
            task: Images and labels.
            progress: Reports progress. True: bars on the terminal or in the notebook.
            checkpoint: Where to keep the progress of the training, so that a killed process can
                resume the task.

        Returns:
            The task, how long it took, accuracy on held-out training images, and warnings.

        Raises:
            RememberingError: If the task cannot be learned.
        """
        if not isinstance(task, Task):
            raise InvalidInputError(
                f"learn takes a Task, not an object of type {type(task).__name__}; pass "
                f"{_as_task(task)}"
            )
        started, before = time.perf_counter(), self._state
        self._state = learn(before, self._backbone, task, as_progress(progress), checkpoint)
        trim_malloc()
        seconds = time.perf_counter() - started
        about = doubts(before, self._backbone, task)
        return Learned(self._state.tasks[-1], seconds, self._state, about)

    def observe(
        self,
        images: ImagesLike,
        labels: Sequence[Label],
        *,
        refine: bool = False,
        progress: Progress | bool = SILENT,
    ) -> Observed:
        """Take in a batch of a stream without task boundaries.

        Images that resemble learned tasks are recognised. New images wait until the stream has
        moved on and are then learned as a task; `flush` learns them at once.

        Args:
            images: As for `predict`.
            labels: One label per image.
            refine: Whether recognised images update the generative models of their tasks.
            progress: Reports progress.
        """
        batch = images, labels, refine, as_progress(progress)
        self._state, observed = observe(self._state, self._backbone, *batch)
        trim_malloc()
        return observed

    def flush(
        self, *, discard: bool = False, progress: Progress | bool = SILENT
    ) -> tuple[TaskRecord, ...]:
        """Learn the observed images that are still waiting, and return the new tasks.

        Args:
            discard: Whether to drop what cannot be learned, such as a label with a single image.
            progress: Reports progress.

        Raises:
            RememberingError: If some cannot be learned and `discard` is False. They keep waiting;
                the others are learned.
        """
        before = len(self._state.tasks)
        for state in flush(self._state, self._backbone, discard, as_progress(progress)):
            self._state = state
        return self._state.tasks[before:]

    def forget(self, name: str) -> Forgotten:
        """Remove a task: its statistics, its replay images, and its adapter unless shared.

        The statistics of the other tasks are then as if it had never been learned, up to rounding
        (`exact_forgetting`). The result says whether a shared adapter was trained on the task, and
        what would remove that influence.
        """
        self._state, forgotten = forget(self._state, name)
        return forgotten

    def add_images(self, task: str, images: ImagesLike, labels: LabelsLike) -> None:
        """Add images to classes of a task, as if they had been part of it."""
        self._state = add_images(self._state, self._backbone, task, images, labels)

    def add_class(self, task: str, label: Label, images: ImagesLike) -> None:
        """Add a class to a task, from at least two images."""
        self._state = add_class(self._state, self._backbone, task, label, images)

    def remove_class(self, task: str, label: Label) -> None:
        """Remove a class from a task that has others."""
        self._state = remove_class(self._state, task, label)

    def rename_task(self, name: str, new_name: str) -> None:
        """Give a task another name."""
        self._state = rename_task(self._state, name, new_name)

    def rename_class(self, task: str, label: Label, new_label: Label) -> None:
        """Give a class of a task another label."""
        self._state = rename_class(self._state, task, label, new_label)

    def merge(self, other: Self) -> None:
        """Add the tasks of another model on the same backbone, with the same settings."""
        if not isinstance(other, Teachable):
            raise InvalidInputError(
                f"merge takes a model, not an object of type {type(other).__name__}; pass "
                "RememberingTransformer.load(folder)"
            )
        if self._backbone.fingerprint() != other._backbone.fingerprint():
            raise RememberingError(
                f"the models were learned on different backbones: '{self._backbone.name}' and "
                f"'{other._backbone.name}'"
            )
        self._state = merge(self._state, other._state.to(self._backbone.device))

    def consolidate(
        self, *, progress: Progress | bool = SILENT, checkpoint: Checkpoint | None = None
    ) -> tuple[Consolidated, ...]:
        """Retrain adapters that serve several tasks, jointly on the replay images of these tasks.

        An adapter is replaced unless the new one is worse on held-out images.

        Args:
            progress: Reports progress.
            checkpoint: Where to keep the progress of the training.

        Raises:
            RememberingError: If no adapter is shared, or its tasks have no replay images.
        """
        options = as_progress(progress), checkpoint
        self._state, reports = consolidate_shared(self._state, self._backbone, *options)
        return reports


def _as_task(given: object) -> str:
    """Return what to write instead of something that is no task."""
    if isinstance(given, list | tuple) and given and all(isinstance(t, Task) for t in given):
        return "one task after another"
    if not isinstance(given, str | Path):
        return "Task(name, images, labels)"
    path = Path(given)
    if is_table(path) or (path.is_dir() and task_folders(path) != [path]):
        return f"each task of load_tasks({str(given)!r})"
    return f"Task.from_folder({str(given)!r})"
