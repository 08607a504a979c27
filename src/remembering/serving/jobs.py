"""Jobs: long operations that run in the background and survive the process.

A job is written to disk before it is acknowledged: its images first, then its record. A record that
is not finished is run again when a server starts.

    jobs/ID.json                       the record
    jobs/ID.images                     its images (safetensors), until it is finished
    jobs/progress-ID.safetensors       checkpoint of the training
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from remembering import schema
from remembering.data.task import Label
from remembering.errors import RememberingError
from remembering.learning.checkpoint import Checkpoint
from remembering.runtime.files import remove_unfinished, write_atomic
from remembering.serving.inputs import LabelledBytes
from remembering.serving.options import Limits
from remembering.serving.problems import ProblemError, busy

Kind = Literal["learn", "add", "observe", "flush"]
Status = Literal["queued", "running", "done", "failed", "cancelled"]
_MAX_RECORD = 10 * 1024**2


@dataclass(frozen=True)
class Job:
    """A long operation.

    Attributes:
        id: Random; names the job in requests.
        number: Position in the order of arrival.
        kind: What is done.
        status: How far it is.
        task: Name of the task to learn, or to add to.
        labels: Label of each image; only in the stored record.
        discard: For `flush`: whether to drop what cannot be learned.
        cancelling: Whether the client has cancelled it.
        progress: Share that is done, in 0..1.
        message: What is being done.
        seconds_left: Estimated time until it is done.
        error: Why it failed.
        version: Version of the model that contains the result.
        result: What was done, for `add`, `observe` and `flush`.
    """

    id: str
    number: int
    kind: Kind
    status: Status = "queued"
    task: str | None = None
    labels: tuple[Label, ...] = ()
    discard: bool = False
    cancelling: bool = False
    progress: float = 0.0
    message: str = "waiting"
    seconds_left: float | None = None
    error: str | None = None
    version: int | None = None
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether nothing more will be done."""
        return self.status not in ("queued", "running")

    def public(self) -> dict[str, Any]:
        """Return what clients see."""
        hidden = ("number", "labels", "discard", "cancelling")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden}


class JobStore:
    """The jobs of a model, in memory and on disk. Thread-safe.

    Args:
        folder: Where jobs are stored.
        limits: How many jobs may wait, and how many finished ones are kept.
    """

    def __init__(self, folder: Path, limits: Limits):
        self._folder, self._limits = folder, limits
        self._jobs: dict[str, Job] = {}
        self._lock = threading.RLock()

    def restore(self) -> None:
        """Read the jobs that an earlier server left behind; those that it did not finish wait."""
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(self._folder)
        jobs = []
        for path in self._folder.glob("*.json"):
            try:
                if path.stat().st_size > _MAX_RECORD:
                    raise RememberingError(f"{path} is too large")
                job = schema.read(Job, json.loads(path.read_bytes()), str(path))
            except (OSError, ValueError, RememberingError):
                continue  # written by nobody who was told that it exists
            if path.stem == job.id:
                jobs.append(job)
        with self._lock:
            self._jobs = {job.id: job for job in sorted(jobs, key=lambda job: job.number)}
        known = {*self._jobs}
        for path in self._folder.glob("*.images"):
            if path.stem not in known:  # its record was not written: it was never acknowledged
                path.unlink()

    def add(
        self,
        kind: Kind,
        task: str | None = None,
        batch: LabelledBytes | None = None,
        discard: bool = False,
    ) -> Job:
        """Store a new job; when this returns, the job is durable.

        Raises:
            ProblemError: If too many jobs wait.
        """
        with self._lock:
            self.check_free()
            number = max((job.number for job in self._jobs.values()), default=0) + 1
            labels = batch.labels if batch else ()
            job = Job(secrets.token_hex(8), number, kind, task=task, labels=labels, discard=discard)
            if batch:
                write_atomic(self._images(job), encode_images(batch.images))
            self._write(job)
            self._jobs[job.id] = job
            return job

    def check_free(self) -> None:
        """Raise if too many jobs wait."""
        if len(self.active()) >= self._limits.jobs:
            raise busy(f"{self._limits.jobs} jobs are waiting; retry when one is done", 5)

    def get(self, job_id: str) -> Job:
        """Return a job by its id."""
        with self._lock:
            job = self._jobs.get(job_id)
        if job is None:
            raise ProblemError(404, "there is no such job; GET /v1/jobs lists the jobs")
        return job

    def all(self) -> list[Job]:
        """Return all jobs, oldest first."""
        with self._lock:
            return list(self._jobs.values())

    def active(self) -> list[Job]:
        """Return the jobs that wait or run."""
        return [job for job in self.all() if not job.finished]

    def counts(self) -> Counter[str]:
        """Return the number of jobs by status."""
        return Counter(job.status for job in self.all())

    def update(self, job: Job, **changes: Any) -> Job:
        """Change a job in memory, such as its progress."""
        with self._lock:
            self._jobs[job.id] = replace(self._jobs[job.id], **changes)
            return self._jobs[job.id]

    def record(self, job: Job, **changes: Any) -> Job:
        """Change a job in memory and on disk."""
        with self._lock:
            job = self.update(job, **changes)
            self._write(job)
            return job

    def finish(self, job: Job, status: Status, *, keep_images: bool = False, **changes: Any) -> Job:
        """Record the end of a job, on disk first.

        Args:
            job: The job.
            status: How it ended.
            keep_images: Whether its images are still needed.
            changes: Further fields to set.
        """
        with self._lock:
            job = replace(self.get(job.id), status=status, seconds_left=None, **changes)
            self._write(job)
            self._jobs[job.id] = job
            self.checkpoint(job).remove()
            if not keep_images:
                self.drop_images(job)
            self._forget_old()
        return job

    def cancel(self, job_id: str) -> Job:
        """Cancel a job that waits; a running one is cancelled when the learner notices.

        Raises:
            ProblemError: If it is finished already.
        """
        with self._lock:
            job = self.get(job_id)
            if job.status == "queued":
                return self.finish(job, "cancelled", message="cancelled")
            if job.finished:
                raise ProblemError(409, f"the job is {job.status} and cannot be cancelled")
            return self.record(job, cancelling=True, message="cancelling")

    def images(self, job: Job) -> LabelledBytes:
        """Return the stored images of a job."""
        path = self._images(job)
        try:
            images = decode_images(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RememberingError(f"the images of job {job.id} cannot be read: {error}") from error
        if len(images) != len(job.labels):
            raise RememberingError(f"the images of job {job.id} are incomplete")
        return LabelledBytes(images, job.labels)

    def has_images(self, job: Job) -> bool:
        """Return whether the images of a job are stored."""
        return self._images(job).is_file()

    def drop_images(self, job: Job) -> None:
        """Remove the stored images of a job."""
        self._images(job).unlink(missing_ok=True)

    def checkpoint(self, job: Job) -> Checkpoint:
        """Return where the training of a job saves its progress."""
        return Checkpoint(self._folder / f"progress-{job.id}.safetensors")

    def _images(self, job: Job) -> Path:
        return self._folder / f"{job.id}.images"

    def _write(self, job: Job) -> None:
        stored = {f.name: getattr(job, f.name) for f in fields(job)}
        if stored["status"] == "running":  # a server that starts later runs it again
            stored["status"] = "queued"
        write_atomic(self._folder / f"{job.id}.json", json.dumps(stored).encode())

    def _forget_old(self) -> None:
        finished = [job for job in self._jobs.values() if job.finished and not self.has_images(job)]
        for job in finished[: -self._limits.finished_jobs]:
            del self._jobs[job.id]
            (self._folder / f"{job.id}.json").unlink(missing_ok=True)


def encode_images(images: tuple[bytes, ...]) -> bytes:
    """Pack encoded images into one file."""
    tensors = {
        f"{i:06d}": torch.frombuffer(bytearray(image), dtype=torch.uint8)
        for i, image in enumerate(images)
    }
    data: bytes = save(tensors)
    return data


def decode_images(data: bytes) -> tuple[bytes, ...]:
    """Unpack the encoded images of a file.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return tuple(tensors[name].numpy().tobytes() for name in sorted(tensors))
