"""Jobs are durable: what was acknowledged is done, also by the next server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from support import make_task

from remembering.model import RememberingTransformer
from remembering.serving.heldout import split
from remembering.serving.inputs import LabelledBytes
from remembering.serving.jobs import JobStore
from remembering.serving.options import Limits
from remembering.serving.problems import ProblemError
from remembering.serving.progress import JobProgress

from .running import classes, finished, learn, png, running

BATCH = LabelledBytes((b"one", b"two"), ("a", "b"))


def names(client: httpx.Client) -> list[str]:
    return [task["name"] for task in client.get("/v1/model").json()["tasks"]]


def test_a_stored_job_is_found_again(tmp_path: Path) -> None:
    store = JobStore(tmp_path, Limits())
    store.restore()
    job = store.add("learn", "pets", BATCH)
    store.update(job, status="running", progress=0.5)
    again = JobStore(tmp_path, Limits())
    again.restore()
    (found,) = again.active()
    assert (found.id, found.status, found.task) == (job.id, "queued", "pets")
    images = again.images(found)
    assert (images.images, images.labels) == (BATCH.images, BATCH.labels)


def test_finished_jobs_keep_their_record_but_not_their_images(tmp_path: Path) -> None:
    store = JobStore(tmp_path, Limits(finished_jobs=2))
    store.restore()
    jobs = [store.add("learn", f"task {n}", BATCH) for n in range(4)]
    for job in jobs:
        store.finish(job, "done", version=3)
    again = JobStore(tmp_path, Limits())
    again.restore()
    assert [(job.task, job.status, job.version) for job in again.all()] == [
        ("task 2", "done", 3),
        ("task 3", "done", 3),
    ]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".json"]


def test_damaged_and_unacknowledged_files_are_ignored(tmp_path: Path) -> None:
    store = JobStore(tmp_path, Limits())
    store.restore()
    job = store.add("learn", "pets", BATCH)
    record = json.loads((tmp_path / f"{job.id}.json").read_bytes())
    unknown_kind = {**record, "id": "c" * 16, "kind": "x"}
    for digit, content in (
        ("a", b"{"),
        ("b", b"[]"),
        ("c", json.dumps(unknown_kind).encode()),
        ("d", json.dumps(record).encode()),
    ):
        (tmp_path / f"{digit * 16}.json").write_bytes(content)
    (tmp_path / "0123456789abcdef.images").write_bytes(b"never acknowledged")
    again = JobStore(tmp_path, Limits())
    again.restore()
    assert [found.id for found in again.all()] == [job.id]
    assert not (tmp_path / "0123456789abcdef.images").exists()


def test_too_many_jobs_are_refused(tmp_path: Path) -> None:
    store = JobStore(tmp_path, Limits(jobs=2))
    store.restore()
    first, _ = store.add("learn", "a", BATCH), store.add("learn", "b", BATCH)
    with pytest.raises(ProblemError, match="2 jobs are waiting"):
        store.add("learn", "c", BATCH)
    store.cancel(first.id)
    assert store.add("learn", "c", BATCH).number == 3


def test_every_class_keeps_two_images_for_training() -> None:
    for count in range(2, 30):
        training, held = split(["a"] * count)
        assert len(training) >= 2
        assert len(held) == (max(1, count // 5) if count > 2 else 0)
        assert sorted([*training, *held]) == list(range(count))


def test_progress_reports_shares_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    reports: list[tuple[float, str, float | None]] = []
    progress = JobProgress(100, lambda *report: reports.append(report), lambda: None)
    with progress.track("encoding", 50) as step:
        step(25)
    with progress.track("learning", 50) as step:
        step(25, "loss 1")
    assert [(round(share, 2), message) for share, message, _ in reports] == [
        (0.0, "encoding"),
        (0.25, "encoding"),
        (0.5, "encoding"),
        (0.5, "learning"),
        (0.75, "learning (loss 1)"),
        (0.99, "learning"),
    ]
    assert reports[0][2] is None
    assert reports[1][2] == pytest.approx(2 * 3)  # two seconds for a quarter
    assert reports[4][2] == pytest.approx(5 / 3)


@pytest.mark.integration
def test_a_stopped_server_is_resumed_by_the_next(folder: Path) -> None:
    with running(folder) as client:
        body = {"name": "long", "classes": classes(2, ("x", "y"), per_class=200)}
        job = client.post("/v1/learn", json=body).json()["job"]["id"]
        while client.get(f"/v1/jobs/{job}").json()["progress"] < 0.2:
            time.sleep(0.01)
        assert names(client) == ["task 0", "task 1"]
    with running(folder) as client:
        assert finished(client, job)["status"] == "done"
        assert names(client) == ["task 0", "task 1", "long"]


@pytest.mark.integration
def test_a_task_that_was_saved_but_not_reported_is_not_learned_twice(folder: Path) -> None:
    batch = make_task(2, ("x", "y"))
    training, held = split(batch.labels)
    with running(folder) as client:
        learn(client, "new", classes(2, ("x", "y")))
    store = JobStore(folder.with_name("model.serving") / "jobs", Limits())
    store.restore()
    images = LabelledBytes(tuple(png(image) for image in batch.images), batch.labels)
    job = store.add("learn", "new", images)  # as if the server had died after saving
    with running(folder) as client:
        state = finished(client, job.id)
        assert (state["status"], state["version"]) == ("done", 2)
        task = client.get("/v1/model").json()["tasks"][-1]
        assert (task["images"], task["held_out"]) == (len(training), len(held))


@pytest.mark.integration
def test_images_that_were_added_but_not_reported_are_not_added_twice(refinable: Path) -> None:
    with running(refinable) as client:
        response = client.post("/v1/tasks/task 0/classes", json={"classes": classes(2, ("x", "y"))})
        job = finished(client, response.json()["job"]["id"])
        assert job["status"] == "done", job
        task = client.get("/v1/model").json()["tasks"][0]
    store = JobStore(refinable.with_name("model.serving") / "jobs", Limits())
    store.restore()
    batch = make_task(2, ("x", "y"))
    images = LabelledBytes(tuple(png(image) for image in batch.images), batch.labels)
    again = store.add("add", "task 0", images)  # as if the server had died after saving
    store.record(again, result=job["result"])
    with running(refinable) as client:
        state = finished(client, again.id)
        assert (state["status"], state["version"]) == ("done", 2)
        assert client.get("/v1/model").json()["tasks"][0]["images"] == task["images"]


@pytest.mark.integration
def test_a_job_that_fails_says_why_and_changes_nothing(folder: Path) -> None:
    store = JobStore(folder.with_name("model.serving") / "jobs", Limits())
    store.restore()
    # Two classes of other labels under a name that exists: refused by a request, stored here.
    images = LabelledBytes(tuple(png(image) for image in make_task(2).images), ("x", "y") * 6)
    job = store.add("learn", "task 0", images)
    with running(folder) as client:
        state = finished(client, job.id)
        assert state["status"] == "failed"
        assert "'task 0' is already learned" in state["error"]
        assert client.get("/v1/model").json()["version"] == 1


@pytest.mark.integration
def test_a_state_of_another_process_is_served(folder: Path) -> None:
    with running(folder) as client:
        model = RememberingTransformer.load(folder)
        model.learn(make_task(2, ("x", "y")))
        model.save(folder)
        deadline = time.monotonic() + 20
        while client.get("/v1/model").json()["version"] == 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert names(client) == ["task 0", "task 1", "task 2"]
        assert learn(client, "more", classes(3, ("v", "w")))["version"] == 3


@pytest.mark.integration
def test_several_servers_read_what_one_writes_and_another_takes_over(folder: Path) -> None:
    def wait(done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    with ExitStack() as later, ExitStack() as first:
        writer = first.enter_context(running(folder))
        reader = later.enter_context(running(folder))
        assert not writer.get("/v1/model").json()["read_only"]
        assert reader.get("/v1/model").json()["read_only"]
        assert learn(writer, "new", classes(2, ("x", "y")))["status"] == "done"
        wait(lambda: "new" in names(reader))
        assert reader.get("/v1/model").json()["version"] == 2
        body = {"name": "x", "classes": classes(3)}
        assert reader.post("/v1/learn", json=body).status_code == 409
        first.close()  # the writer stops
        wait(lambda: not reader.get("/v1/model").json()["read_only"])
        assert learn(reader, "newer", classes(3, ("v", "w")))["version"] == 3
