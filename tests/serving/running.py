"""A server on loopback, and requests to it."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from support import make_task
from torch import Tensor

from remembering.serving.options import ServeOptions
from remembering.serving.server import Server, bind, url_of
from remembering.serving.service import Service

FINISHED = ("done", "failed", "cancelled")


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[httpx.Client]:
    """Serve a folder in a thread of this process."""
    with bind("127.0.0.1", 0) as bound:
        service = Service(ServeOptions(folder, **{"poll_seconds": 0.05, **options}))
        ready = threading.Event()
        server = Server(service, ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            assert ready.wait(30), "the server does not start"
            with httpx.Client(base_url=url_of(bound), timeout=60) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the server does not stop"


def png(image: Tensor) -> bytes:
    """Encode an image (channels, height, width) without loss."""
    pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, "PNG")
    return file.getvalue()


def text(image: Tensor) -> str:
    """Encode an image as base64."""
    return base64.b64encode(png(image)).decode()


def classes(number: int, labels: tuple[str, ...] = ("a", "b"), per_class: int = 6) -> Any:
    """Images by label, as `POST /v1/learn` expects them."""
    task = make_task(number, labels, per_class)
    pairs = list(zip(task.images, task.labels, strict=True))
    return {label: [text(image) for image, own in pairs if own == label] for label in labels}


def learn(client: httpx.Client, name: str, body: Any) -> dict[str, Any]:
    """Learn a task, and return its job once it is finished."""
    response = client.post("/v1/learn", json={"name": name, "classes": body})
    assert response.status_code == 202, response.text
    return finished(client, response.json()["job"]["id"])


def finished(client: httpx.Client, job: str, seconds: float = 60) -> dict[str, Any]:
    """Wait until a job is finished, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state: dict[str, Any] = client.get(f"/v1/jobs/{job}").json()
        if state["status"] in FINISHED:
            return state
        time.sleep(0.02)
    raise AssertionError(f"job {job} is not finished: {state}")


def problem(response: httpx.Response, status: int) -> str:
    """Check that a response is a problem document, and return its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == status
    assert document["title"]
    return str(document["detail"])
