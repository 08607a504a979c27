"""The HTTP service under load: 32 clients, 2,000 single images, also while a task is learned.

    python benchmarks/serving.py

Throughput without learning is compared with offline prediction in one call, in turns, from the same
encoded images and with the same number of threads: one core is left to HTTP and the clients, which
share the machine. While a task is learned, every answer must equal the offline answer of the
version it names. The command fails if a request fails, an answer differs, or the throughput misses
its goal.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from common import compare, interleaved, parser, publish
from PIL import Image
from torch import Tensor

from remembering.data.decoding import decode_image
from remembering.data.sources import load
from remembering.data.task import Task
from remembering.inference.prediction import Prediction
from remembering.model import RememberingTransformer

CLIENTS, REQUESTS, IMAGES = 32, 2000, 200
GOAL = 0.8
TOLERANCE = 1e-4
"""Largest difference of probabilities: the rounding of a product depends on the batch."""


@dataclass(frozen=True)
class Answer:
    """One answer of the service, and how long it took."""

    image: int
    status: int
    seconds: float
    body: dict[str, Any]


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(turns=5)
    arguments = options.parse_args()
    threads = max(1, (os.cpu_count() or 1) - 1)
    torch.set_num_threads(threads)
    digits = load("digits")
    images = digits.test.images[torch.arange(IMAGES)]
    assert isinstance(images, Tensor)
    encoded = [_base64(image) for image in images]
    bodies = [json.dumps({"images": [text]}).encode() for text in encoded]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        model = RememberingTransformer.from_backbone("bundled")
        for classes in ((0, 1), (2, 3)):
            model.learn(_task(digits.train, classes))
        model.save(folder)
        with _server(folder, threads) as url:
            times = interleaved(
                {
                    "service": lambda: _check(_load(url, bodies, REQUESTS)),
                    "offline": lambda: _predict(model, encoded, REQUESTS),
                },
                arguments.turns,
            )
            quiet = _check(_load(url, bodies, REQUESTS))
            shutil.copytree(folder, Path(scratch) / "1")
            busy, seconds = _while_learning(url, bodies, _task(digits.train, (4, 5)))
            shutil.copytree(folder, Path(scratch) / "2")
        versions = _compare_offline([Path(scratch) / "1", Path(scratch) / "2"], images, busy)
    rate = REQUESTS / times["service"].best
    row = compare(
        f"{CLIENTS} clients, single images, no learning",
        times["service"],
        "offline prediction in one call",
        times["offline"],
        GOAL,
        f"{rate:.0f} images/s",
    )
    latencies = {"no learning": _latencies(quiet), "while learning": _latencies(busy)}
    publish("Serving", [row], arguments.json, milliseconds=latencies, answers=versions)
    print()
    for name, values in latencies.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.0f} ms" for key, value in values.items()))
    print(
        f"{len(busy)} answers in {seconds:.0f} s while a task was learned, all equal to the "
        f"offline answers of their versions: {versions}"
    )
    if row.ratio < GOAL:
        sys.exit(f"the throughput is {row.ratio:.2f} of offline prediction; the goal is {GOAL}")


def _while_learning(url: str, bodies: Sequence[bytes], task: Task) -> tuple[list[Answer], float]:
    """Send requests while a task is learned, and some after it."""
    classes: dict[str, list[str]] = {}
    for image, label in zip(task.images, task.labels, strict=True):
        classes.setdefault(str(label), []).append(_base64(image))
    body = json.dumps({"name": task.name, "classes": classes}).encode()
    started = time.perf_counter()
    status, answer = _request(_connect(url), "POST", "/v1/learn", body)
    assert status == 202, answer
    answers = _load(url, bodies, REQUESTS)
    job = f"/v1/jobs/{answer['job']['id']}"
    while True:
        status, state = _request(_connect(url), "GET", job)
        if state["status"] not in ("queued", "running"):
            break
        answers += _load(url, bodies, CLIENTS)
    assert state["status"] == "done", state
    answers += _load(url, bodies, len(bodies))
    return _check(answers), time.perf_counter() - started


def _load(url: str, bodies: Sequence[bytes], count: int) -> list[Answer]:
    """Send so many requests from all clients, each with a connection of its own.

    The clients share the machine with the service. They therefore do as little as possible: a
    request is one call of the system, and answers are parsed at the end.
    """
    address = urlsplit(url)
    requests = [
        f"POST /v1/predict HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json"
        f"\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
        for body in bodies
    ]

    def client(number: int) -> list[tuple[int, int, float, bytes]]:
        answers = []
        with socket.create_connection((address.hostname, address.port), timeout=120) as connection:
            for i in range(number, count, CLIENTS):
                image = i % len(bodies)
                started = time.perf_counter()
                connection.sendall(requests[image])
                status, body = _receive(connection)
                answers.append((image, status, time.perf_counter() - started, body))
        return answers

    with ThreadPoolExecutor(CLIENTS) as pool:
        parts = list(pool.map(client, range(CLIENTS)))
    return [
        Answer(image, status, seconds, json.loads(body))
        for part in parts
        for image, status, seconds, body in part
    ]


def _receive(connection: socket.socket) -> tuple[int, bytes]:
    """Return status and body of a response, whose length is in a header."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _more(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    found = re.search(rb"\r\ncontent-length: (\d+)", head)
    assert found, head
    while len(body) < int(found[1]):
        body += _more(connection)
    return int(head.split(b" ", 2)[1]), body


def _more(connection: socket.socket) -> bytes:
    received = connection.recv(2**16)
    if not received:
        sys.exit("the server closed a connection")
    return received


def _check(answers: list[Answer]) -> list[Answer]:
    failed = [answer for answer in answers if answer.status != 200]
    if failed:
        sys.exit(f"{len(failed)} of {len(answers)} requests failed, such as {failed[0]}")
    return answers


def _compare_offline(
    folders: Sequence[Path], images: Tensor, answers: Sequence[Answer]
) -> dict[str, int]:
    """Compare every answer with that of its version; return the number of answers by version."""
    offline: dict[int, Prediction] = {}
    for folder in folders:
        version = json.loads((folder / "manifest.json").read_text())["generation"]
        offline[version] = RememberingTransformer.load(folder).predict(images)
    counts: dict[str, int] = {}
    for answer in answers:
        version = answer.body["version"]
        counts[f"version {version}"] = counts.get(f"version {version}", 0) + 1
        (ours,) = answer.body["predictions"]
        expected = offline[version]
        i = answer.image
        if (ours["label"], ours["task"], ours["adapter"]) != (
            expected.labels[i],
            expected.tasks[i],
            int(expected.adapters[i]),
        ) or abs(ours["probability"] - float(expected.confidence[i])) > TOLERANCE:
            sys.exit(f"image {i}: {ours} differs from the offline answer of version {version}")
    return counts


def _predict(model: RememberingTransformer, encoded: Sequence[str], count: int) -> None:
    images = [base64.b64decode(encoded[i % len(encoded)]) for i in range(count)]
    model.predict(torch.stack([decode_image(image, "image") for image in images]))


def _latencies(answers: Sequence[Answer]) -> dict[str, float]:
    cuts = statistics.quantiles([1000 * answer.seconds for answer in answers], n=100)
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


@contextmanager
def _server(folder: Path, threads: int) -> Iterator[str]:
    program = [sys.executable, "-m", "remembering", "serve", str(folder), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            found = re.search(r"at (http://\S+/)", line)
            if not found:
                sys.exit(f"the server did not start: {line}")
            yield found[1]
        finally:
            process.terminate()


def _connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)


def _request(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json"} if body else {}
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def _task(train: Any, classes: tuple[int, int], per_class: int = 40) -> Task:
    rows = torch.cat([(train.labels == label).nonzero().flatten()[:per_class] for label in classes])
    labels = [str(label) for label in train.labels[rows].tolist()]
    return Task(f"digits {classes[0]} and {classes[1]}", train.images[rows], labels)


def _base64(image: Tensor) -> str:
    file = io.BytesIO()
    Image.fromarray(image[0].numpy()).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


if __name__ == "__main__":
    main()
