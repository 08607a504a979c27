"""The thread that makes every change to the model of a service."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.learning.observe import flush, observe
from remembering.runtime.lock import only_writer
from remembering.serving.adding import add
from remembering.serving.batching import yield_to_predictions
from remembering.serving.heldout import HeldOut, chosen, split
from remembering.serving.inputs import EncodedImages
from remembering.serving.jobs import Job, JobStore
from remembering.serving.metrics import Metrics
from remembering.serving.problems import ProblemError, busy
from remembering.serving.progress import (
    CancelledJob,
    JobProgress,
    StoppedServer,
    expected_images,
)
from remembering.serving.served import ModelFolder, Served
from remembering.state import ModelState, PendingTask

logger = logging.getLogger("remembering.serving")
Edit = Callable[[ModelState], tuple[ModelState, Any]]


class Learner:
    """Runs jobs and edits one after the other, and notices states that other processes saved.

    A change is saved before it is served, and served before it is reported. Only one server at a
    time learns for a model: the one that holds the lock of `workspace`. Another one waits for the
    lock and only predicts.

    Args:
        folder: The model.
        workspace: Folder of jobs and held-out images, beside that of the model.
        jobs: The jobs.
        metrics: Counts finished jobs.
        poll_seconds: How often to look for a state that another process saved.
        read_only: Whether to leave learning to another server.
    """

    def __init__(
        self,
        folder: ModelFolder,
        workspace: Path,
        jobs: JobStore,
        metrics: Metrics,
        poll_seconds: float,
        read_only: bool,
    ):
        self.folder, self.workspace, self.jobs = folder, workspace, jobs
        self.heldout = HeldOut(workspace / "heldout")
        self._metrics = metrics
        self._poll_seconds, self._read_only = poll_seconds, read_only
        self._previous: ModelState | None = None
        self._pending: tuple[PendingTask, ...] = ()
        self._stamp = folder.stamp()
        self._served = folder.load()
        self._edits: deque[tuple[Edit, Future[tuple[int, Any]]]] = deque()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._is_writer = threading.Event()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)

    @property
    def served(self) -> Served:
        """The model that answers predictions."""
        return self._served

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def is_writer(self) -> bool:
        """Whether this server learns."""
        return self._is_writer.is_set()

    @property
    def can_undo(self) -> bool:
        """Whether the state before the last change is known."""
        return self._previous is not None or self.folder.has_previous

    @property
    def observed(self) -> int:
        """Number of observed images that wait to be learned."""
        return sum(len(task.labels) for task in self._pending)

    def start(self) -> None:
        """Start the thread; return once it is known whether this server learns."""
        self._thread.start()
        if not self._read_only:
            self._is_writer.wait(2.0)

    def stop(self) -> None:
        """Interrupt the current job, which the next server resumes, and end the thread."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        self._refuse_edits()

    def wake(self) -> None:
        """Notice a new job."""
        self._wake.set()

    def check_writer(self) -> None:
        """Raise if this server does not learn."""
        if not self.is_writer:
            raise ProblemError(
                409,
                "this server only reads the model; send changes to the server that writes it",
            )

    def edit(self, change: Edit) -> Future[tuple[int, Any]]:
        """Change the state in the learner's thread.

        Returns:
            The new version, and the second value that `change` returned.

        Raises:
            ProblemError: If a job waits or runs, or this server only reads.
        """
        self.check_writer()
        if self.jobs.active():
            raise ProblemError(
                409,
                "a job is waiting or running; retry when it is done, or cancel it",
                {"Retry-After": "5"},
            )
        future: Future[tuple[int, Any]] = Future()
        self._edits.append((change, future))
        self._wake.set()
        return future

    def undo(self) -> Future[tuple[int, Any]]:
        """Return to the state before the last change; a second call repeats the change."""

        def change(state: ModelState) -> tuple[ModelState, None]:
            previous = self._previous or self.folder.previous()
            if previous is None:
                raise ProblemError(409, "there is no change to undo")
            # Numbers of tasks are never used twice.
            number = max(state.next_number, previous.next_number)
            return replace(previous, next_number=number), None

        return self.edit(change)

    def _run(self) -> None:
        yield_to_predictions()
        while not self._stopping.is_set():
            if self._read_only:
                self._serve_until_stopped()
                return
            try:
                with only_writer(self.workspace):
                    self._restore()
                    self._is_writer.set()
                    self._serve_until_stopped()
            except RememberingError as error:  # most likely, another server learns
                logger.info("this server does not learn: %s", error)
                self._is_writer.clear()
                self._refuse_edits()
                self._guarded(self._refresh)
                self._stopping.wait(self._poll_seconds)

    def _restore(self) -> None:
        self.jobs.restore()
        self.heldout.restore()
        self._guarded(self._observe_again)

    def _serve_until_stopped(self) -> None:
        while not self._stopping.is_set():
            self._guarded(self._refresh)
            if self._is_writer.is_set():
                while self._edits:
                    self._edit(*self._edits.popleft())
                for job in self.jobs.active():
                    self._run_job(job)
                    if self._stopping.is_set():
                        return
            self._wake.wait(self._poll_seconds)
            self._wake.clear()

    def _refuse_edits(self) -> None:
        while self._edits:
            _, future = self._edits.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(busy("the server is stopping; retry with another one"))

    def _guarded(self, function: Callable[[], None]) -> None:
        try:
            function()
        except StoppedServer:
            return
        except Exception:
            logger.exception("the model in %s cannot be updated", self.folder.path)

    def _refresh(self) -> None:
        """Serve the state that another process saved, if there is one."""
        stamp = self.folder.stamp()
        if stamp is None or stamp == self._stamp:
            return
        if self.folder.identity() != self._served.identity:
            self._served = self.folder.load()
            self._previous = None
            self._observe_again()
        self._stamp = stamp

    def _edit(self, change: Edit, future: Future[tuple[int, Any]]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            with only_writer(self.folder.path):
                self._refresh()
                before = self._served.model.state
                state, result = change(before)
                if state is not before:
                    self._save(state)
            future.set_result((self._served.version, result))
        except Exception as error:
            future.set_exception(error)
            return
        self._guarded(self._measure)

    def _save(self, state: ModelState) -> None:
        """Save a state and serve it."""
        before = self._served.model
        model = before.with_state(replace(state, pending=()))
        model.save(self.folder.path)
        self._stamp = self.folder.stamp()
        self._previous = before.state
        self._served = self.folder.served(model)

    def _run_job(self, job: Job) -> None:
        job = self.jobs.get(job.id)
        if job.finished:
            return
        if job.cancelling:
            self._finish(job, "cancelled", message="cancelled")
            return
        job = self.jobs.update(job, status="running", message="starting")
        run: Callable[[Job], dict[str, Any]] = getattr(self, f"_{job.kind}")
        try:
            with only_writer(self.folder.path):
                self._refresh()
                result = run(job)
            self._finish(
                job,
                "done",
                keep_images=job.kind == "observe",
                message="done",
                progress=1.0,
                version=self._served.version,
                result=result,
            )
        except CancelledJob:
            self._finish(job, "cancelled", message="cancelled")
        except StoppedServer:
            self.jobs.update(job, status="queued", message="waiting")
        except RememberingError as error:
            self._finish(job, "failed", message="failed", error=str(error))
        except Exception as error:
            logger.exception("job %s failed", job.id)
            self._finish(job, "failed", message="failed", error=f"unexpected error: {error}")
        self._drop_learned_observations()

    def _finish(self, job: Job, status: Any, **changes: Any) -> None:
        self._metrics.jobs.add(1, job.kind, status)
        self.jobs.finish(job, status, **changes)

    def _progress(self, job: Job, images: int) -> JobProgress:
        def report(share: float, message: str, left: float | None) -> None:
            self.jobs.update(job, progress=share, message=message, seconds_left=left)

        def check() -> None:
            self._check_running()
            if self.jobs.get(job.id).cancelling:
                raise CancelledJob

        return JobProgress(images, report, check)

    def _measure(self) -> None:
        """Measure the accuracy of the current version on held-out images."""
        self.heldout.measure(
            self._served, JobProgress(1, lambda share, message, left: None, self._check_running)
        )

    def _check_running(self) -> None:
        if self._stopping.is_set():
            raise StoppedServer

    def _learn(self, job: Job) -> dict[str, Any]:
        batch = self.jobs.images(job)
        training, held = (chosen(batch, positions) for positions in split(batch.labels))
        task = Task(str(job.task), EncodedImages(training.images), training.labels)
        if not self._is_learned(task):
            model = self._served.model.with_state(self._served.model.state)
            progress = self._progress(job, expected_images(model.state, len(task)))
            model.learn(task, progress=progress, checkpoint=self.jobs.checkpoint(job))
            self._save(model.state)
        record = self._served.model.state.task(task.name)
        self.jobs.update(job, message="measuring the accuracy", progress=0.99)
        self.heldout.add(record, held)
        self._measure()
        return {}

    def _is_learned(self, task: Task) -> bool:
        """Return whether an earlier server was stopped between saving a task and reporting it."""
        return any(
            (record.name, record.images, record.classes) == (task.name, len(task), task.classes)
            for record in self._served.model.state.tasks
        )

    def _add(self, job: Job) -> dict[str, Any]:
        batch = self.jobs.images(job)
        training, held = (chosen(batch, positions) for positions in split(batch.labels))
        state, name = self._served.model.state, str(job.task)
        before = state.task(name)
        if job.result == {"images": before.images}:  # saved by a server that was stopped since
            before = replace(before, images=before.images - len(training.images))
        else:
            progress = self._progress(job, len(training.images))
            state = add(state, self._served.model.backbone, name, training, progress)
            self.jobs.record(job, result={"images": state.task(name).images})
            self._save(state)
        self.heldout.extend(before, state.task(name), held)
        self._measure()
        return {"images": state.task(name).images}

    def _observe(self, job: Job) -> dict[str, Any]:
        batch = self.jobs.images(job)
        before = self._observing_state()
        waiting = len(batch.images) + before.observed
        state, observed = observe(
            before,
            self._served.model.backbone,
            EncodedImages(batch.images),
            batch.labels,
            progress=self._progress(job, expected_images(before, waiting)),
        )
        self._adopt(state)
        return {
            "recognised": observed.recognised,
            "learned": [record.name for record in observed.learned],
            "waiting": observed.waiting,
            "problems": list(observed.problems),
        }

    def _flush(self, job: Job) -> dict[str, Any]:
        before = self._observing_state()
        known = {task.name for task in before.tasks}
        progress = self._progress(job, expected_images(before, before.observed))
        for state in flush(before, self._served.model.backbone, job.discard, progress):
            self._adopt(state)
        names = [task.name for task in self._served.model.state.tasks if task.name not in known]
        return {"learned": names, "waiting": self.observed}

    def _observing_state(self) -> ModelState:
        return replace(self._served.model.state, pending=self._pending)

    def _adopt(self, state: ModelState) -> None:
        """Keep what is pending, and save the state if a task was learned."""
        if state.tasks != self._served.model.state.tasks:
            self._save(state)
            self._measure()
        self._pending = state.pending

    def _observe_again(self) -> None:
        """Rebuild the pending tasks from the stored observations, after the model has changed."""
        self._pending = ()
        for job in self.jobs.all():
            if job.kind == "observe" and job.status == "done" and self.jobs.has_images(job):
                batch = self.jobs.images(job)
                state, _ = observe(
                    self._observing_state(),
                    self._served.model.backbone,
                    EncodedImages(batch.images),
                    batch.labels,
                )
                self._adopt(state)

    def _drop_learned_observations(self) -> None:
        """Remove stored observations once none of them waits any more."""
        if self._pending:
            return
        for job in self.jobs.all():
            if job.kind == "observe" and job.finished:
                self.jobs.drop_images(job)
