"""The workspace beside a model may come from an archive: no link or special file is followed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remembering.cli.serve import run
from remembering.errors import RememberingError, StorageError
from remembering.serving.heldout import HeldOut
from remembering.serving.inputs import LabelledBytes
from remembering.serving.jobs import Job, JobStore, encode_images
from remembering.serving.options import Limits, ServeOptions
from remembering.serving.service import Service
from remembering.state import TaskRecord

from .running import running

BATCH = LabelledBytes((b"one", b"two"), ("a", "b"))
UNACKNOWLEDGED = "0123456789abcdef.images"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The workspace of a model."""
    (tmp_path / "m.serving").mkdir()
    return tmp_path / "m.serving"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder whose files have the names of files that a server removes."""
    victim = tmp_path / "victim"
    (victim / "jobs").mkdir(parents=True)
    for name in (UNACKNOWLEDGED, ".x.json.01234567.unfinished", f"jobs/{UNACKNOWLEDGED}"):
        (victim / name).write_bytes(b"precious")
    return victim


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def ended(function: Callable[[], Any]) -> Any:
    """Call a function that must not block, and return its result, or the error that it raised."""
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(function())
        except RememberingError as error:
            results.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(5)
    assert results, "it blocks"
    return results[0]


def restored(folder: Path) -> JobStore:
    store = JobStore(folder, Limits())
    store.restore()
    return store


def stored(folder: Path) -> tuple[JobStore, Job]:
    store = restored(folder)
    return store, store.add("learn", "pets", BATCH)


@pytest.mark.parametrize("kind", [JobStore, HeldOut])
def test_a_link_as_folder_of_the_workspace_is_refused(
    workspace: Path, victim: Path, kind: type
) -> None:
    link = workspace / "link"
    link.symlink_to(victim)
    before = contents(victim)
    with pytest.raises(StorageError, match=f"{link} is a symbolic link; remove it"):
        open_folder(kind, link)
    assert contents(victim) == before


@pytest.mark.parametrize("kind", [JobStore, HeldOut])
def test_a_link_as_workspace_is_refused(tmp_path: Path, victim: Path, kind: type) -> None:
    link = tmp_path / "m.serving"
    link.symlink_to(victim)
    before = contents(victim)
    with pytest.raises(StorageError, match=f"{link} is a symbolic link; remove it"):
        open_folder(kind, link / "jobs")
    assert contents(victim) == before


@pytest.mark.parametrize("kind", [JobStore, HeldOut])
def test_a_special_file_as_folder_is_refused(workspace: Path, kind: type) -> None:
    os.mkfifo(workspace / "jobs")
    with pytest.raises(StorageError, match=r"jobs is a FIFO; remove it"):
        open_folder(kind, workspace / "jobs")


def open_folder(kind: type, folder: Path) -> None:
    """Open a folder of the workspace as a server does."""
    (JobStore(folder, Limits()) if kind is JobStore else HeldOut(folder)).restore()


def test_a_link_that_appears_later_is_not_followed(workspace: Path, victim: Path) -> None:
    store = JobStore(workspace / "jobs", Limits())
    (workspace / "jobs").symlink_to(victim)
    before = contents(victim)
    with pytest.raises(StorageError, match="jobs cannot be"):
        store.restore()
    with pytest.raises(StorageError, match="jobs"):
        store.add("learn", "pets", BATCH)
    assert contents(victim) == before


@pytest.mark.parametrize("name", ["x.json", "0123456789abcdef.json"])
def test_a_fifo_as_record_does_not_block(workspace: Path, name: str) -> None:
    folder = workspace / "jobs"
    _, job = stored(folder)
    os.mkfifo(folder / name)
    assert [found.id for found in ended(lambda: restored(folder)).all()] == [job.id]


@pytest.mark.parametrize("make", [os.link, os.symlink])
def test_a_link_as_record_is_ignored_and_keeps_its_images(
    workspace: Path, tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    folder = workspace / "jobs"
    _, job = stored(folder)
    record = (folder / f"{job.id}.json").rename(tmp_path / "elsewhere.json")
    make(record, folder / f"{job.id}.json")
    assert restored(folder).all() == []
    assert (folder / f"{job.id}.images").is_file()


def test_a_nested_or_large_record_is_ignored(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = workspace / "jobs"
    _, job = stored(folder)
    (folder / "0123456789abcdef.json").write_bytes(b"[" * 1_000_000)
    assert [found.id for found in restored(folder).all()] == [job.id]
    monkeypatch.setattr("remembering.serving.jobs.MAX_RECORD", 10)
    assert restored(folder).all() == []


def test_a_fifo_as_images_does_not_block(workspace: Path) -> None:
    store, job = stored(workspace / "jobs")
    path = workspace / "jobs" / f"{job.id}.images"
    path.unlink()
    os.mkfifo(path)
    assert not store.has_images(job)
    assert "is a FIFO" in str(ended(lambda: store.images(job)))


def test_images_of_another_job_or_file_are_not_read_through_a_link(
    workspace: Path, tmp_path: Path
) -> None:
    store, job = stored(workspace / "jobs")
    path = workspace / "jobs" / f"{job.id}.images"
    path.symlink_to(path.rename(tmp_path / "elsewhere"))
    with pytest.raises(RememberingError, match="is a symbolic link"):
        store.images(job)


def test_only_own_names_are_removed(workspace: Path) -> None:
    folder = workspace / "jobs"
    folder.mkdir()
    kept = ["0123.images", "holiday.images", "x.unfinished", "0123456789ABCDEF.images"]
    for name in (*kept, UNACKNOWLEDGED, ".x.json.01234567.unfinished"):
        (folder / name).write_bytes(b"x")
    restored(folder)
    assert contents(folder) == sorted(kept)


def test_special_files_as_held_out_images_do_not_block(workspace: Path) -> None:
    folder = workspace / "heldout"
    folder.mkdir()
    os.mkfifo(folder / "accuracy.json")
    os.mkfifo(folder / "0.images")
    held = HeldOut(folder)
    assert ended(lambda: (held.restore(),)) == (None,)
    record = TaskRecord.__new__(TaskRecord)
    object.__setattr__(record, "number", 0)
    object.__setattr__(record, "images", 2)
    assert ended(lambda: (held._read(record),)) == ((),)
    (folder / "0.images").unlink()
    (folder / "0.images").write_bytes(encode_images((b"one",)))
    assert held._read(record) == (b"one",)
    (folder / "accuracy.json").unlink()
    task = {"images": 2, "targets": [0]}
    (folder / "accuracy.json").write_text(json.dumps({"tasks": {"0": task}}))
    held.restore()
    found = held.of(record)
    assert found is not None
    assert found.targets == (0,)


@pytest.mark.integration
def test_a_server_does_not_start_on_a_linked_workspace(folder: Path, victim: Path) -> None:
    (folder.parent / "model.serving").mkdir()
    (folder.parent / "model.serving" / "jobs").symlink_to(victim)
    before = contents(victim)
    with pytest.raises(StorageError, match=r"model.serving/jobs is a symbolic link"):
        Service(ServeOptions(folder))
    assert contents(victim) == before
    assert contents(folder.parent / "model.serving") == ["jobs"]


@pytest.mark.integration
def test_one_model_has_one_workspace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    monkeypatch.chdir(folder / "adapters")
    inside = contents(folder)
    with running(folder) as writer, running(link) as other, running(Path("..")) as third:
        assert not writer.get("/v1/model").json()["read_only"]
        assert other.get("/v1/model").json()["read_only"]
        assert third.get("/v1/model").json()["read_only"]
    assert contents(folder) == inside
    assert {path.name for path in folder.parent.iterdir()} == {"model", "model.serving", "link"}


@pytest.mark.parametrize("inner", ["", "model"])
def test_a_file_is_not_served(tmp_path: Path, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remembering.serving.server.serve", lambda *_: None)
    (tmp_path / "image.png").write_bytes(b"x")
    options = ServeOptions(tmp_path / "image.png" / inner)
    with pytest.raises(RememberingError, match=r"image.png is a file; give a folder for the model"):
        run(options, None, {}, lambda url: None)
    run(ServeOptions(tmp_path / "new" / "model"), None, {}, lambda url: None)


def test_a_link_to_itself_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remembering.serving.server.serve", lambda *_: None)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(RememberingError, match="loop is a link to itself; give a folder"):
        run(ServeOptions(tmp_path / "loop"), None, {}, lambda url: None)
