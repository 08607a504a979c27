"""The HTTP interface, with a real server on loopback."""

from __future__ import annotations

import io
import re
import shutil
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from support import FAST, learned, make_task

from remembering.backbones.backbone import Backbone
from remembering.data.task import Task
from remembering.model import RememberingTransformer

from .running import classes, finished, learn, png, problem, running, text

pytestmark = pytest.mark.integration


def test_predictions_equal_those_of_the_library(shared: httpx.Client, trained: Path) -> None:
    images = make_task(1, per_class=4).images
    offline = RememberingTransformer.load(trained).predict(images, false_alarm_rate=0.2, top_k=2)
    assert offline.novelty is not None
    assert offline.unknown is not None
    body = {"images": [text(i) for i in images], "top_k": 2, "false_alarm_rate": 0.2}
    response = shared.post("/v1/predict", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["version"] == 1
    for i, one in enumerate(response.json()["predictions"]):
        assert one["label"] == offline.labels[i]
        assert one["task"] == offline.tasks[i]
        assert one["adapter"] == int(offline.adapters[i])
        assert one["p_value"] == pytest.approx(float(offline.novelty[i]))
        assert one["unknown"] == bool(offline.unknown[i])
        assert one["probability"] == pytest.approx(float(offline.confidence[i]), abs=1e-5)
        assert [(top["label"], top["probability"]) for top in one["top"]] == [
            (label, pytest.approx(p, abs=1e-5)) for label, p in (offline.top_k or [])[i]
        ]
        familiarity = {task["name"]: task["probability"] for task in one["tasks"]}
        assert sum(familiarity.values()) == pytest.approx(1)
        assert max(familiarity, key=familiarity.__getitem__) == one["task"]


def test_labels_that_are_not_unicode_are_served(backbone: Backbone, tmp_path: Path) -> None:
    """Folder names on Linux are bytes, see `test_labels_that_are_not_unicode_survive`."""
    model = RememberingTransformer.from_backbone(backbone, **FAST)
    model.learn(make_task(0, ("caf\udce9", "b")))
    model.save(tmp_path / "model")
    with running(tmp_path / "model") as client:
        assert client.get("/v1/model").json()["classes"] == ["b", "caf\udce9"]
        response = client.post("/v1/predict", json={"images": [text(make_task(0).images[0])]})
        assert response.status_code == 200, response.text
        assert response.json()["predictions"][0]["label"] == "caf\udce9"


@pytest.fixture
def strange(backbone: Backbone, tmp_path: Path) -> Iterator[tuple[httpx.Client, Task]]:
    """A server for two tasks that share an adapter, and the one whose name is not UTF-8."""
    model = RememberingTransformer.from_backbone(backbone, **FAST, capacity=1, memory=4)
    first, second = make_task(0, ("a", "b")), make_task(1, ("c", "d"))
    task = Task("t0\udcff", first.images, first.labels)
    model.learn(task)
    model.learn(Task("t1", second.images, second.labels))
    model.save(tmp_path / "model")
    with running(tmp_path / "model") as client:
        yield client, task


def test_jobs_name_tasks_that_are_not_unicode(strange: tuple[httpx.Client, Task]) -> None:
    client, task = strange
    body = {"images": [text(i) for i in task.images], "labels": list(task.labels)}
    job = finished(client, client.post("/v1/observe", json=body).json()["job"]["id"])
    assert task.name in job["result"]["recognised"]
    assert client.get("/v1/jobs").json() == {"jobs": [job]}


def test_forgetting_names_tasks_that_are_not_unicode(strange: tuple[httpx.Client, Task]) -> None:
    client, task = strange
    response = client.delete("/v1/tasks/t1")
    assert response.status_code == 200, response.text
    forgotten = response.json()["forgotten"]
    assert (forgotten["name"], forgotten["shared_with"]) == ("t1", [task.name])


def test_a_form_answers_as_json_does(shared: httpx.Client) -> None:
    images = make_task(0).images[:3]
    files = [("images", (f"../{i}.png", png(image))) for i, image in enumerate(images)]
    form = shared.post("/v1/predict", files=files, data={"top_k": "2", "false_alarm_rate": "0.1"})
    json = shared.post(
        "/v1/predict",
        json={"images": [text(i) for i in images], "top_k": 2, "false_alarm_rate": 0.1},
    )
    assert form.status_code == 200, form.text
    assert form.json() == json.json()


def test_data_urls_and_groups_are_understood(shared: httpx.Client) -> None:
    images = make_task(0).images
    urls = [f"data:image/png;base64,{text(image)}" for image in images]
    body = {"images": urls, "groups": ["burst"] * len(urls)}
    answers = shared.post("/v1/predict", json=body).json()["predictions"]
    assert {answer["task"] for answer in answers} == {"task 0"}
    assert all(answer["p_value"] is None for answer in answers)


def test_learning_is_a_job_and_keeps_what_was_learned(client: httpx.Client) -> None:
    before = client.get("/v1/model").json()
    job = learn(client, "new", classes(2, ("x", "y"), per_class=10))
    assert job["status"] == "done", job
    assert (job["progress"], job["task"], job["error"]) == (1.0, "new", None)
    assert job["version"] == before["version"] + 1
    model = client.get("/v1/model").json()
    assert model["version"] == job["version"]
    task = model["tasks"][-1]
    assert (task["name"], task["classes"], task["images"]) == ("new", ["x", "y"], 16)
    assert task["held_out"] == 4
    assert [point["version"] for point in task["accuracy"]] == [job["version"]]
    again = learn(client, "newer", classes(3, ("v", "w")))
    task = client.get("/v1/model").json()["tasks"][-2]
    assert [point["version"] for point in task["accuracy"]] == [job["version"], again["version"]]


def test_a_form_can_teach(client: httpx.Client) -> None:
    task = make_task(2, ("x", "ÿ/../"))
    files = [
        (f"class:{label}", ("image.png", png(image)))
        for image, label in zip(task.images, task.labels, strict=True)
    ]
    data = {"name": "from a form"}
    assert "X-Remembering" in problem(client.post("/v1/learn", data=data, files=files), 403)
    response = client.post("/v1/learn", data=data, files=files, headers={"X-Remembering": "1"})
    assert response.status_code == 202, response.text
    assert finished(client, response.json()["job"]["id"])["status"] == "done"
    assert client.get("/v1/model").json()["tasks"][-1]["classes"] == ["x", "ÿ/../"]


def test_forget_rename_and_undo(client: httpx.Client, folder: Path) -> None:
    start = client.get("/v1/model").json()
    assert client.post("/v1/tasks/task 1/rename", json={"name": "a/b?c"}).status_code == 200
    body = {"task": "a/b?c", "label": "a1", "new_label": "<b>"}
    assert client.post("/v1/classes/rename", json=body).status_code == 200
    forgotten = client.delete("/v1/tasks/task 0")
    assert forgotten.json()["forgotten"]["name"] == "task 0"
    model = client.get("/v1/model").json()
    assert [task["name"] for task in model["tasks"]] == ["a/b?c"]
    assert model["classes"] == ["<b>", "b1"]
    assert client.post("/v1/undo", json={}).status_code == 200
    model = client.get("/v1/model").json()
    assert [task["name"] for task in model["tasks"]] == ["task 0", "a/b?c"]
    assert model["version"] == start["version"] + 4
    assert RememberingTransformer.load(folder).classes == ("a0", "b0", "<b>", "b1")
    assert client.delete("/v1/tasks/a%2Fb%3Fc").status_code == 200
    assert [task["name"] for task in client.get("/v1/model").json()["tasks"]] == ["task 0"]


def test_fusion_is_visible_under_a_capacity(backbone: Backbone, tmp_path: Path) -> None:
    learned(backbone, 1, capacity=1, memory=4).save(tmp_path / "model")
    with running(tmp_path / "model") as client:
        (before,) = client.get("/v1/model").json()["adapters"]
        assert learn(client, "new", classes(1, ("x", "y")))["status"] == "done"
        model = client.get("/v1/model").json()
    (adapter,) = model["adapters"]
    assert adapter["tasks"] == ["task 0", "new"]
    assert adapter["number"] != before["number"]
    assert (model["capacity"], len(model["tasks"])) == (1, 2)


def test_classes_and_images_are_added_to_a_learned_task(refinable: Path) -> None:
    with running(refinable) as client:
        assert learn(client, "new", classes(2, ("x", "y"), per_class=10))["status"] == "done"
        before = client.get("/v1/model").json()
        body = {"classes": classes(2, ("x", "z"), per_class=10)}
        response = client.post("/v1/tasks/new/classes", json=body)
        assert response.status_code == 202, response.text
        job = finished(client, response.json()["job"]["id"])
        assert (job["status"], job["kind"], job["task"]) == ("done", "add", "new"), job
        model = client.get("/v1/model").json()
        task = model["tasks"][-1]
        assert (task["classes"], task["images"], task["held_out"]) == (["x", "y", "z"], 32, 8)
        versions = [point["version"] for point in task["accuracy"]]
        assert versions == [before["version"], job["version"]]
        assert client.post("/v1/undo", json={}).status_code == 200
        undone = client.get("/v1/model").json()["tasks"][-1]
        assert (undone["classes"], undone["held_out"]) == (["x", "y"], 4)


def test_wrong_additions_are_refused(refinable: Path, shared: httpx.Client) -> None:
    image = text(make_task(0).images[0])
    with running(refinable) as client:
        assert client.get("/v1/model").json()["can_add"]
        for name, body, status, message in (
            ("nothing", {"classes": {"x": [image] * 2}}, 404, "no task 'nothing'"),
            ("task 0", {"classes": {"x": [image]}}, 422, "one image"),
            ("task 0", {"classes": {"x": []}}, 422, "no image to add"),
            ("task 0", {"classes": {"x": ["????"]}}, 422, "not base64"),
            ("task 0", {"name": "x", "classes": {}}, 422, "name"),
        ):
            response = client.post(f"/v1/tasks/{name}/classes", json=body)
            assert message in problem(response, status)
        assert client.get("/v1/jobs").json() == {"jobs": []}
    assert not shared.get("/v1/model").json()["can_add"]
    response = shared.post("/v1/tasks/task 0/classes", json={"classes": {"x": [image] * 2}})
    assert "cannot be refined" in problem(response, 422)


def test_undo_survives_a_restart_and_numbers_are_not_reused(folder: Path) -> None:
    with running(folder) as client:
        assert learn(client, "first", classes(2, ("x", "y")))["status"] == "done"
    with running(folder) as client:
        assert client.get("/v1/model").json()["can_undo"]
        assert client.post("/v1/undo", json={}).status_code == 200
        assert learn(client, "second", classes(3, ("v", "w")))["status"] == "done"
        model = client.get("/v1/model").json()
        assert [task["name"] for task in model["tasks"]] == ["task 0", "task 1", "second"]
        assert [task["adapter"] for task in model["tasks"]] == [0, 1, 3]
        images = make_task(3).images
        body = {"images": [text(image) for image in images]}
        answers = client.post("/v1/predict", json=body).json()["predictions"]
    saved = RememberingTransformer.load(folder).predict(images)
    assert [answer["label"] for answer in answers] == saved.labels


def test_observed_images_wait_until_they_are_flushed(client: httpx.Client) -> None:
    task = make_task(2, ("x", "y"))
    body = {"images": [text(i) for i in task.images], "labels": list(task.labels)}
    job = client.post("/v1/observe", json=body).json()["job"]
    assert finished(client, job["id"])["result"]["waiting"] == len(task)
    assert client.get("/v1/model").json()["pending"] == len(task)
    job = client.post("/v1/flush", json={"discard": False}).json()["job"]
    assert finished(client, job["id"])["result"] == {"learned": ["observed 3"], "waiting": 0}
    assert client.get("/v1/model").json()["pending"] == 0


def test_observed_images_survive_a_restart(folder: Path) -> None:
    task = make_task(2, ("x", "y"))
    with running(folder) as client:
        body = {"images": [text(i) for i in task.images], "labels": list(task.labels)}
        finished(client, client.post("/v1/observe", json=body).json()["job"]["id"])
    with running(folder) as client:
        assert client.get("/v1/model").json()["pending"] == len(task)
        job = client.post("/v1/flush", json={}).json()["job"]
        assert finished(client, job["id"])["result"]["learned"] == ["observed 3"]
    assert not list(folder.with_name("model.serving").rglob("jobs/*.images"))


def test_a_job_can_be_cancelled(client: httpx.Client) -> None:
    before = client.get("/v1/model").json()
    first, second = (
        client.post(
            "/v1/learn",
            json={"name": f"task {n}", "classes": classes(n, (f"x{n}", f"y{n}"), per_class=100)},
        ).json()["job"]["id"]
        for n in (2, 3)
    )
    assert client.delete(f"/v1/jobs/{second}").json()["status"] == "cancelled"
    assert "job" in problem(client.delete("/v1/tasks/task 0"), 409)
    client.delete(f"/v1/jobs/{first}")
    assert finished(client, first)["status"] == "cancelled"
    assert client.get("/v1/model").json()["tasks"] == before["tasks"]
    problem(client.delete(f"/v1/jobs/{first}"), 409)


def test_the_downloaded_model_can_be_loaded(shared: httpx.Client, tmp_path: Path) -> None:
    response = shared.get("/v1/model/download")
    assert response.headers["content-type"] == "application/zip"
    zipfile.ZipFile(io.BytesIO(response.content)).extractall(tmp_path)
    loaded = RememberingTransformer.load(tmp_path / "model")
    assert [task.name for task in loaded.tasks] == ["task 0", "task 1"]


def test_a_model_whose_folder_is_not_unicode_can_be_downloaded(
    trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "caf\udce9"
    try:
        shutil.copytree(trained, folder)
    except OSError:
        pytest.skip("the file system accepts names in UTF-8 only")
    with running(folder) as client:
        response = client.get("/v1/model/download")
    assert response.status_code == 200, response.text
    assert "caf%5Cxe9.zip" in response.headers["content-disposition"]
    names = zipfile.ZipFile(io.BytesIO(response.content)).namelist()
    assert {name.partition("/")[0] for name in names} == {"caf\\xe9"}


@contextmanager
def no_file_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that the temporary files of a request are removed."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    deadline = time.monotonic() + 5  # the server removes them after the client has the answer
    while [*folder.iterdir()] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [*folder.iterdir()]


@pytest.mark.parametrize(
    ("range_", "status"),
    [(None, 200), ("bytes=0-9", 206), ("bytes=foo", 400), ("bytes=999999999-", 416)],
)
def test_a_download_leaves_no_file(
    shared: httpx.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    range_: str | None,
    status: int,
) -> None:
    headers = {"Range": range_} if range_ else {}
    with no_file_left(tmp_path, monkeypatch):
        assert shared.get("/v1/model/download", headers=headers).status_code == status


def test_a_failed_archive_leaves_no_file(
    shared: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "write", fail)
    with no_file_left(tmp_path, monkeypatch):
        problem(shared.get("/v1/model/download"), 500)


def test_built_in_images_can_be_predicted(shared: httpx.Client) -> None:
    sets = shared.get("/v1/samples").json()["sets"]
    assert {one["name"]: len(one["labels"]) for one in sets} == {"digits": 10, "letters": 26}
    for name, label in (("digits", "7"), ("letters", "Q")):
        images = shared.get(f"/v1/samples/{name}/{label}?count=60").json()["images"]
        assert len({*images}) == 60
        answer = shared.post("/v1/predict", json={"images": images}).json()
        assert len(answer["predictions"]) == 60
    problem(shared.get("/v1/samples/digits/Q"), 404)
    problem(shared.get("/v1/samples/digits/1?count=0"), 422)


def test_events_report_jobs_and_versions(client: httpx.Client) -> None:
    with client.stream("GET", "/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: model"
        body = {"name": "new", "classes": classes(2)}
        assert httpx.post(f"{client.base_url}v1/learn", json=body).status_code == 202
        deadline = time.monotonic() + 30
        for line in lines:
            if '"status": "done"' in line:
                return
            assert time.monotonic() < deadline


def test_metrics_are_in_the_format_of_prometheus(shared: httpx.Client) -> None:
    shared.post("/v1/predict", json={"images": [text(make_task(0).images[0])]})
    lines = shared.get("/metrics").text.splitlines()
    sample = r'# (HELP|TYPE) \w+ .+|\w+(\{(\w+="[^"]*",?)+\})? [-+.e\d]+'
    assert [line for line in lines if not re.fullmatch(sample, line)] == []
    assert any("remembering_predict_seconds_count" in line for line in lines)
    assert any('path="/v1/predict",status="200"' in line for line in lines)


def test_the_documentation_lists_every_operation_and_loads_nothing(shared: httpx.Client) -> None:
    page = shared.get("/docs").text
    for path in shared.get("/openapi.json").json()["paths"]:
        assert f"<code>{path}</code>" in page
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["/docs.css", "/openapi.json"]
    assert "<script" not in page


def test_health_and_readiness(shared: httpx.Client) -> None:
    for path in ("/healthz", "/readyz"):
        assert shared.get(path).json() == {"status": "ok"}


def test_an_empty_model_explains_itself(tmp_path: Path) -> None:
    with running(tmp_path / "new") as client:
        assert client.get("/v1/model").json()["version"] == 0
        image = text(torch.zeros(1, 8, 8, dtype=torch.uint8))
        detail = problem(client.post("/v1/predict", json={"images": [image]}), 409)
        assert "not learned a task yet" in detail
        problem(client.get("/v1/model/download"), 409)
        problem(client.post("/v1/undo", json={}), 409)
    assert not (tmp_path / "new").exists()


def test_wrong_tasks_are_refused_before_they_are_acknowledged(shared: httpx.Client) -> None:
    image, two = text(make_task(0).images[0]), classes(2)
    for body, status, message in (
        ({"name": "task 0", "classes": two}, 409, "already learned"),
        ({"name": " ", "classes": two}, 422, "is empty"),
        ({"name": "x" * 201, "classes": two}, 422, "more than 200 characters"),
        ({"name": "a\u0007b", "classes": two}, 422, "control characters"),
        ({"name": "new", "classes": {}}, 422, "at least two classes"),
        ({"name": "new", "classes": {"a": [image] * 3}}, 422, "at least two classes"),
        ({"name": "new", "classes": {"a": [image] * 2, "b": [image]}}, 422, "one image"),
        ({"name": "new", "classes": {"a": [image] * 2, "b": ["????"]}}, 422, "not base64"),
        ({"name": "new", "classes": {"a": [image] * 2, "b": ["AAAA"] * 2}}, 422, "not an image"),
        ({"name": "new", "classes": {"a": [image], " a": [image]}}, 422, "surrounding spaces"),
        ({"name": "new"}, 422, "classes"),
        ({"name": "new", "classes": two, "epochs": 3}, 422, "epochs"),
    ):
        detail = problem(shared.post("/v1/learn", json=body), status)
        assert message in detail, detail
    assert shared.get("/v1/jobs").json() == {"jobs": []}


def test_labels_become_integers_where_the_model_has_integers(
    backbone: Backbone, tmp_path: Path
) -> None:
    model = RememberingTransformer.from_backbone(backbone, **FAST)
    model.learn(make_task(0, (0, 1)))
    model.save(tmp_path / "model")
    with running(tmp_path / "model") as client:
        assert learn(client, "more", classes(1, ("2", "3")))["status"] == "done"
        body = {"name": "wrong", "classes": classes(2, ("x", "y"))}
        assert "integers" in problem(client.post("/v1/learn", json=body), 422)
        assert client.get("/v1/model").json()["classes"] == [0, 1, 2, 3]


def test_a_stopping_server_ends_event_streams(folder: Path) -> None:
    """Otherwise they would delay the shutdown until they are cut off."""
    lines: list[str] = []
    begun = threading.Event()

    def listen(url: str) -> None:
        with httpx.stream("GET", f"{url}v1/events", timeout=30) as response:
            for line in response.iter_lines():
                lines.append(line)
                begun.set()
        lines.append("end")

    with running(folder) as client:
        listener = threading.Thread(target=listen, args=(str(client.base_url),))
        listener.start()
        assert begun.wait(30)
    listener.join(30)
    assert lines[-1] == "end", "the stream was cut off"
