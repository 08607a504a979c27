"""What the service can do, independent of HTTP."""

from __future__ import annotations

import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from remembering.data.task import Label
from remembering.errors import RememberingError
from remembering.learning.forget import Forgotten, forget
from remembering.learning.refine import check_refinable
from remembering.learning.rename import rename_class, rename_task
from remembering.model import RememberingTransformer
from remembering.runtime.text import printable
from remembering.serving.batching import Batcher
from remembering.serving.heldout import split
from remembering.serving.inputs import LabelledBytes, Query, checked_label
from remembering.serving.jobs import Job, JobStore
from remembering.serving.learner import Learner
from remembering.serving.metrics import Metrics
from remembering.serving.options import ServeOptions
from remembering.serving.prediction_process import PredictionProcess
from remembering.serving.problems import ProblemError
from remembering.serving.served import ModelFolder, Served, new_model
from remembering.state import ModelState, TaskRecord

WORKSPACE_SUFFIX = ".serving"


class Service:
    """Predicts, learns and edits one model.

    Args:
        options: What to serve.
        create: Returns a model that has learned nothing, if the folder holds none.
        backbone: Where the backbone of the model is now, if it was moved.
    """

    def __init__(
        self,
        options: ServeOptions,
        create: Callable[[], RememberingTransformer] = new_model,
        backbone: str | None = None,
    ):
        self.options, self.metrics = options, Metrics()
        folder = options.folder.absolute()
        # Links and ".." are resolved: a model has one workspace, however its folder is named.
        resolved = folder.resolve()
        workspace = resolved.with_name(resolved.name + WORKSPACE_SUFFIX)
        self.jobs = JobStore(workspace / "jobs", options.limits)
        source = ModelFolder(folder, create, backbone)
        self.learner = Learner(
            source,
            workspace,
            self.jobs,
            self.metrics,
            options.poll_seconds,
            options.read_only,
        )
        self._process = PredictionProcess(source)
        self.batcher = Batcher(
            lambda: self.served, options.limits, self.metrics, self._process.answer
        )
        self.stopping = False
        self.learner.start()

    @property
    def served(self) -> Served:
        """The current version."""
        return self.learner.served

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered."""
        return not self.stopping and self.learner.is_alive

    def close(self) -> None:
        """Answer what waits, interrupt learning so that it can be resumed, and stop."""
        self.stopping = True
        self.batcher.close()
        self._process.close()
        self.learner.stop()

    def predict(self, query: Query) -> Future[dict[str, Any]]:
        """Queue a prediction."""
        if not self.served.model.tasks:
            raise ProblemError(409, "the model has not learned a task yet; learn one first")
        return self.batcher.submit(query)

    def learn(self, name: str, batch: LabelledBytes) -> Job:
        """Store a task to learn; it is durable when this returns.

        Raises:
            ProblemError: If it cannot be learned.
        """
        self.learner.check_writer()
        waiting = {job.task for job in self.jobs.active() if job.kind == "learn"}
        if name in waiting | {task.name for task in self.served.model.tasks}:
            raise ProblemError(
                409, f"a task named '{name}' is already learned or waiting; choose another name"
            )
        if len({*batch.labels}) < 2:
            raise ProblemError(422, f"task '{name}' needs images of at least two classes")
        batch = self._matched(batch)
        _check_counts(name, batch)
        return self._add("learn", name, batch)

    def add(self, name: str, batch: LabelledBytes) -> Job:
        """Store images to add to a task; labels that it lacks become new classes.

        Raises:
            ProblemError: If they cannot be added.
        """
        self.learner.check_writer()
        self._require_task(name)
        state = self.served.model.state
        check_refinable(state)
        batch = self._matched(batch)
        _check_counts(name, batch, known=state.task(name).classes)
        return self._add("add", name, batch)

    def observe(self, batch: LabelledBytes) -> Job:
        """Store labelled images of a stream without task boundaries."""
        self.learner.check_writer()
        batch = self._matched(batch)
        waiting = sum(len(job.labels) for job in self.jobs.active() if job.kind == "observe")
        limit = self.options.limits.task_images
        if self.learner.observed + waiting + len(batch.images) > limit:
            raise ProblemError(
                409, f"more than {limit} observed images would wait to be learned; call flush first"
            )
        return self._add("observe", None, batch)

    def flush(self, discard: bool) -> Job:
        """Learn the observed images that wait."""
        self.learner.check_writer()
        return self._add("flush", None, None, discard)

    def forget(self, name: str) -> Future[tuple[int, Forgotten]]:
        """Remove a task."""
        self._require_task(name)
        return self.learner.edit(lambda state: forget(state, name))

    def rename_task(self, name: str, new_name: str) -> Future[tuple[int, None]]:
        """Rename a task."""
        self._require_task(name)
        return self.learner.edit(lambda state: (rename_task(state, name, new_name), None))

    def rename_class(self, task: str, label: Label, new_label: Label) -> Future[tuple[int, None]]:
        """Rename a class of a task."""
        self._require_task(task)

        def change(state: ModelState) -> tuple[ModelState, None]:
            return rename_class(state, task, label, new_label), None

        return self.learner.edit(change)

    def undo(self) -> Future[tuple[int, None]]:
        """Return to the state before the last change."""
        return self.learner.undo()

    def model(self) -> dict[str, Any]:
        """Describe the current version."""
        served = self.served
        state, backbone = served.model.state, served.model.backbone
        return {
            "version": served.version,
            "name": self.options.folder.resolve().name,
            "backbone": {"name": Path(backbone.name).name, "image_size": backbone.image_size},
            "tasks": [self._task(record) for record in state.tasks],
            "adapters": [
                {"number": n, "tasks": [task.name for task in state.served_by(n)]}
                for n in state.adapters
            ],
            "classes": list(state.classes),
            "footprint": asdict(state.footprint),
            "capacity": state.settings.capacity,
            "can_undo": self.learner.can_undo,
            "can_add": _can_add(state),
            "read_only": not self.learner.is_writer,
            "token_required": self.options.token is not None,
            "pending": self.learner.observed,
        }

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Return metrics that are read rather than counted."""
        served = self.served
        footprint = served.model.footprint()
        return {
            "model_version": ("Version of the model.", served.version),
            "tasks": ("Learned tasks.", len(served.model.tasks)),
            "adapters": ("Adapters.", len(served.model.state.adapters)),
            "model_bytes": ("Bytes kept besides the backbone.", footprint.bytes),
            "queued_images": ("Images that wait for a prediction.", self.batcher.queued_images),
            "active_jobs": ("Jobs that wait or run.", len(self.jobs.active())),
            "observed_images": ("Observed images that wait.", self.learner.observed),
        }

    def archive(self) -> Path:
        """Write the model to a temporary zip file, which the caller removes."""
        served = self.served
        if not served.model.tasks:
            raise ProblemError(409, "the model has not learned a task yet; learn one first")
        # A zip file has no form for bytes that are not UTF-8.
        name = printable(self.options.folder.resolve().name)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            # Saved anew: the folder itself may change while it is read.
            copy = RememberingTransformer(served.model.backbone, state=served.model.state)
            copy.save(folder)
            with tempfile.NamedTemporaryFile(suffix=".zip", delete=False) as file:
                try:
                    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                        for path in sorted(folder.rglob("*")):
                            if path.is_file():
                                archive.write(path, Path(name) / path.relative_to(folder))
                except BaseException:
                    Path(file.name).unlink()
                    raise
            return Path(file.name)

    def _add(self, kind: Any, *arguments: Any) -> Job:
        job = self.jobs.add(kind, *arguments)
        self.learner.wake()
        return job

    def _require_task(self, name: str) -> None:
        if all(task.name != name for task in self.served.model.tasks):
            raise ProblemError(404, f"there is no task '{name}'; GET /v1/model lists the tasks")

    def _matched(self, batch: LabelledBytes) -> LabelledBytes:
        """Return a batch whose labels have the type of the model's labels."""
        known = self.served.model.classes
        if not known or type(known[0]) is type(batch.labels[0]):
            return batch
        try:
            matched = {label: type(known[0])(label) for label in batch.labels}
        except ValueError as error:
            raise ProblemError(
                422, f"the labels of the model are integers; {error}; use integers"
            ) from error
        if len({*matched.values()}) < len(matched):
            raise ProblemError(422, "two labels are the same integer; write each in one way")
        labels = tuple(checked_label(matched[label], self.options.limits) for label in batch.labels)
        return replace(batch, labels=labels)

    def _task(self, record: TaskRecord) -> dict[str, Any]:
        held = self.learner.heldout.of(record)
        return {
            "name": record.name,
            "classes": list(record.classes),
            "images": record.images,
            "adapter": record.adapter,
            "held_out": len(held.targets) if held else 0,
            "accuracy": [asdict(point) for point in held.points] if held else [],
        }


def _can_add(state: ModelState) -> bool:
    try:
        check_refinable(state)
    except RememberingError:
        return False
    return True


def _check_counts(name: str, batch: LabelledBytes, known: Sequence[Label] = ()) -> None:
    """Raise if a new class has too few images."""
    kept = Counter(batch.labels[i] for i in split(batch.labels)[0])
    for label in dict.fromkeys(batch.labels):
        if label not in known and kept[label] < 2:
            raise ProblemError(
                422, f"class '{label}' of task '{name}' has one image; give at least two"
            )
