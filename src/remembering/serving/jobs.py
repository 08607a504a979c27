"""Jobs: long operations that run in the background and survive the process.

A job is written to disk before it is acknowledged: its images first, then its record. A record that
is not finished is run again when a server starts.

    jobs/ID.json                       the record
    jobs/ID.images                     its images (safetensors), until it is finished
    jobs/progress-ID.safetensors       checkpoint of the training
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import stat
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
from remembering.errors import RememberingError, StorageError
from remembering.learning.checkpoint import Checkpoint
from remembering.runtime.files import SafeFolder, problem_of
from remembering.runtime.text import printable
from remembering.serving.inputs import LabelledBytes
from remembering.serving.options import Limits
from remembering.serving.problems import ProblemError, busy

Kind = Literal["learn", "add", "observe", "flush"]
Status = Literal["queued", "running", "done", "failed", "cancelled"]
MAX_RECORD = 64 * 1024**2
"""Bytes of a JSON file that are read."""
MAX_STORED_IMAGES = 2 * 1024**3
"""Bytes of a file of encoded images that are read, if requests cannot be larger."""
_NAME = re.compile(r"([0-9a-f]{16})\.(json|images)")

logger = logging.getLogger("remembering.serving")


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

    Raises:
        StorageError: If the folder, or the workspace that contains it, is not a plain directory.
    """

    def __init__(self, folder: Path, limits: Limits):
        self._folder, self._limits = plain_folder(folder), limits
        self._jobs: dict[str, Job] = {}
        self._lock = threading.RLock()

    def restore(self) -> None:
        """Read the jobs that an earlier server left behind; those that it did not finish wait."""
        self._folder.create()
        self._folder.remove_unfinished()
        names = [found for name in self._folder.entries() if (found := _NAME.fullmatch(name))]
        recorded = {found[1] for found in names if found[2] == "json"}
        jobs = [job for job in map(self._stored, sorted(recorded)) if job is not None]
        with self._lock:
            self._jobs = {job.id: job for job in sorted(jobs, key=lambda job: job.number)}
        for found in names:
            if found[1] not in recorded:  # its record was not written: it was never acknowledged
                self._folder.remove(found[0])

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
                self._save(_images(job), encode_images(batch.images))
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
        limit = max(MAX_STORED_IMAGES, 2 * self._limits.body_bytes)
        try:
            images = decode_images(self._folder.read(_images(job), limit=limit))
        except (OSError, ValueError) as error:
            raise RememberingError(f"the images of job {job.id} cannot be read: {error}") from error
        if len(images) != len(job.labels):
            raise RememberingError(f"the images of job {job.id} are incomplete")
        return LabelledBytes(images, job.labels)

    def has_images(self, job: Job) -> bool:
        """Return whether the images of a job are stored."""
        info = self._folder.stat(_images(job))
        return info is not None and stat.S_ISREG(info.st_mode)

    def drop_images(self, job: Job) -> None:
        """Remove the stored images of a job."""
        self._folder.remove(_images(job))

    def checkpoint(self, job: Job) -> Checkpoint:
        """Return where the training of a job saves its progress."""
        return Checkpoint(self._folder.path / f"progress-{job.id}.safetensors")

    def _stored(self, job_id: str) -> Job | None:
        """Return the job of a record; None if nobody was told that it exists, or it is damaged."""
        name = f"{job_id}.json"
        try:
            content = json.loads(self._folder.read(name, limit=MAX_RECORD))
            job = schema.read(Job, content, str(self._folder.path / name))
        except (OSError, ValueError, RecursionError, RememberingError) as error:
            logger.warning("the record of job %s is ignored: %s", job_id, printable(error))
            return None
        return job if job.id == job_id else None

    def _write(self, job: Job) -> None:
        stored = {f.name: getattr(job, f.name) for f in fields(job)}
        if stored["status"] == "running":  # a server that starts later runs it again
            stored["status"] = "queued"
        self._save(f"{job.id}.json", json.dumps(stored).encode())

    def _save(self, name: str, data: bytes) -> None:
        self._folder.create()
        self._folder.write(name, data)

    def _forget_old(self) -> None:
        finished = [job for job in self._jobs.values() if job.finished and not self.has_images(job)]
        for job in finished[: -self._limits.finished_jobs]:
            del self._jobs[job.id]
            self._folder.remove(f"{job.id}.json")


def plain_folder(folder: Path) -> SafeFolder:
    """Return access to a folder of the workspace.

    The workspace is found by its name and may come from an archive together with the model. Unlike
    the folder of the model, which the user names, it may therefore not be a link.

    Raises:
        StorageError: If the folder, or the workspace that contains it, is not a plain directory.
    """
    for path in (folder.parent, folder):
        try:
            problem = problem_of(path.lstat(), directory=True)
        except FileNotFoundError:
            break
        except OSError as error:
            raise StorageError(
                f"{path} cannot be read ({error.strerror}); choose another folder for the model"
            ) from error
        if problem:
            raise StorageError(
                f"{path} {problem}; remove it, or replace it by a plain directory, because jobs "
                "and held-out images are stored there"
            )
    return SafeFolder(folder)


def _images(job: Job) -> str:
    return f"{job.id}.images"


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
    if any(tensor.dtype != torch.uint8 for tensor in tensors.values()):
        raise ValueError("not a file of encoded images")
    return tuple(tensors[name].numpy().tobytes() for name in sorted(tensors))
