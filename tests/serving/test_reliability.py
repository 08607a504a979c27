"""A server in a process of its own: killed at random moments, and sent random requests.

`REMEMBERING_LONG=full` sends 5,000 generated requests and 5,000 mutated images instead of a few
hundred.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from PIL import Image
from schemathesis import GenerationMode
from support import sized

from remembering.model import RememberingTransformer
from remembering.storage.verify import verify

from .running import FINISHED, classes

pytestmark = pytest.mark.reliability

KILLS = sized(2, 20, 20)
REQUESTS = sized(200, 2000, 5000)
MUTATIONS = sized(200, 1000, 5000)
GROWTH_BYTES = 32 * 1024**2


@contextmanager
def process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `remember serve`; yield the process and its URL."""
    program = [sys.executable, "-m", "remembering", "serve", str(folder), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as server:
        try:
            line = server.stdout.readline() if server.stdout else ""
            found = re.search(r"at (http://\S+/)", line)
            assert found, line
            yield server, found[1]
        finally:
            server.kill()


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_acknowledged_tasks_survive_kill_9(folder: Path) -> None:
    rng = random.Random(0)
    acknowledged: list[str] = []

    def teach(url: str, number: int) -> None:
        name = f"taught {number}"
        images = classes(number, (f"x{number}", f"y{number}"), per_class=rng.choice((6, 30)))
        with contextlib.suppress(httpx.HTTPError):  # killed before it could answer
            body = {"name": name, "classes": images}
            response = httpx.post(f"{url}v1/learn", json=body, timeout=30)
            assert response.status_code in (202, 503), response.text
            if response.status_code == 202:
                acknowledged.append(name)

    for kill in range(KILLS):
        with process(folder) as (server, url):
            teacher = threading.Thread(target=teach, args=(url, kill))
            teacher.start()
            if kill % 2:  # else while the request is being answered
                teacher.join()
            time.sleep(rng.uniform(0, 0.6))
            server.kill()
            teacher.join()
        if (folder / "manifest.json").exists():
            assert verify(folder) == [], f"after kill {kill}"
    with process(folder) as (_, url), httpx.Client(base_url=url) as client:
        deadline = time.monotonic() + 120
        while True:
            jobs = client.get("/v1/jobs").json()["jobs"]
            if all(job["status"] in FINISHED for job in jobs):
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert {job["status"] for job in jobs} == {"done"}
        tasks = [task["name"] for task in client.get("/v1/model").json()["tasks"]]
    assert len(acknowledged) >= KILLS // 2
    assert [name for name in acknowledged if name not in tasks] == []
    assert len({*tasks}) == len(tasks)
    saved = RememberingTransformer.load(folder)
    assert [task.name for task in saved.tasks] == tasks


def _sender(operation: Any, mode: GenerationMode, answers: list[Any]) -> Callable[[], None]:
    """Return a function that sends some generated requests and checks the answers."""

    @settings(
        max_examples=20,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        response = case.call(headers={"X-Remembering": "1"}, timeout=60)
        answers.append((operation.method, operation.path, response.status_code))
        if response.status_code >= 400:
            assert response.headers["content-type"] == ["application/problem+json"], response.text
        assert response.status_code < 500 or response.status_code == 503, response.text

    return send


def test_generated_requests_cause_no_error_no_growth_and_no_other_change(folder: Path) -> None:
    answers: list[tuple[str, str, int]] = []
    with process(folder) as (server, url):
        schema = schemathesis.openapi.from_url(f"{url}openapi.json")
        operations = [result.ok() for result in schema.get_all_operations()]
        operations = [o for o in operations if o.path != "/v1/events"]  # a stream without an end
        early = attempt = 0
        while len(answers) < REQUESTS:
            attempt += 1
            for operation in operations:
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                    with contextlib.suppress(Unsatisfiable):  # without input, nothing is wrong
                        seed(attempt)(_sender(operation, mode, answers))()
            early = early or resident_bytes(server.pid)
        late = resident_bytes(server.pid)
        version = _version_when_idle(url)
        assert server.poll() is None
    statuses = Counter(status for _, _, status in answers)
    print(f"{len(answers)} requests: {dict(statuses)}; grown by {late - early:,} bytes")
    accepted = [
        path
        for method, path, status in answers
        if method.upper() != "GET" and path != "/v1/predict" and status < 300
    ]
    # Every save has its accepted request: nothing that was refused has changed the model.
    assert version - 1 <= len(accepted), Counter(accepted)
    assert verify(folder) == []
    assert late - early < GROWTH_BYTES


def _version_when_idle(url: str) -> int:
    deadline = time.monotonic() + 60
    while any(job["status"] not in FINISHED for job in httpx.get(f"{url}v1/jobs").json()["jobs"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return int(httpx.get(f"{url}v1/model").json()["version"])


def test_mutated_images_are_answered_or_refused(folder: Path) -> None:
    before = contents(folder)
    rng = random.Random(0)
    originals = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000"):
        for mode in ("L", "RGB"):
            file = io.BytesIO()
            Image.effect_noise((24, 17), 80).convert(mode).save(file, kind)
            originals.append(file.getvalue())
    statuses: Counter[int] = Counter()
    with process(folder) as (server, url), httpx.Client(base_url=url, timeout=60) as client:
        for data in originals:
            body = {"images": [base64.b64encode(data).decode()]}
            assert client.post("/v1/predict", json=body).status_code == 200
        early = 0
        for number in range(MUTATIONS):
            if number == MUTATIONS // 5:  # all decoders have been used
                early = resident_bytes(server.pid)
            data = bytearray(rng.choice(originals))
            for _ in range(rng.choice((1, 4, 32))):
                data[rng.randrange(len(data))] = rng.randrange(256)
            if rng.random() < 0.3:
                data = data[: rng.randrange(len(data))]
            image = base64.b64encode(bytes(data)).decode()
            path, body = rng.choice(
                [
                    ("/v1/predict", {"images": [image]}),
                    ("/v1/learn", {"name": "task 0", "classes": {"a": [image] * 2, "b": []}}),
                ]
            )
            response = client.post(path, json=body)
            statuses[response.status_code] += 1
            assert response.status_code in (200, 409, 422), response.text
        late = resident_bytes(server.pid)
        print(f"{dict(statuses)}; grown by {late - early:,} B")
    assert statuses[200]
    assert statuses[422]
    assert late - early < GROWTH_BYTES
    assert contents(folder) == before
