"""The service is safe by default: hosts, tokens, origins, limits, paths and headers."""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import shutil
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from support import make_task

from remembering.errors import RememberingError
from remembering.serving.metrics import Metrics
from remembering.serving.options import Limits, ServeOptions
from remembering.serving.security import Guard

from .running import classes, problem, running, text

pytestmark = pytest.mark.integration

TOKEN = "correct-horse-battery-staple"
SMALL = Limits(body_bytes=200_000, images=4, image_pixels=10_000, request_pixels=15_000)


@pytest.fixture(scope="module")
def small(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server with low limits."""
    folder = tmp_path_factory.mktemp("small") / "model"
    shutil.copytree(trained, folder)
    with running(folder, limits=SMALL) as client:
        yield client


def image_of(width: int, height: int) -> str:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def bomb(width: int, height: int) -> str:
    """A small PNG that claims to be large."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "::", "example.org"])
def test_other_addresses_require_a_token(host: str, tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match="requires a token"):
        ServeOptions(tmp_path, host)
    ServeOptions(tmp_path, host, token=TOKEN)


@pytest.mark.parametrize("token", ["", "short", "with a space in the middle", "ü" * 20])
def test_weak_tokens_are_refused(token: str, tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match="at least 16 ASCII characters"):
        ServeOptions(tmp_path, token=token)


def test_a_token_protects_everything_but_the_page(folder: Path) -> None:
    with running(folder, token=TOKEN) as client:
        for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200
        for method, path in (
            ("GET", "/v1/model"),
            ("GET", "/v1/model/download"),
            ("GET", "/metrics"),
            ("POST", "/v1/predict"),
            ("POST", "/v1/learn"),
            ("DELETE", "/v1/tasks/task 0"),
            ("GET", "//v1/model"),
        ):
            for header in (None, "Bearer wrong-horse-battery-staple", f"Basic {TOKEN}", "Bearer"):
                headers = {} if header is None else {"Authorization": header}
                response = client.request(method, path, headers=headers)
                assert problem(response, 401)
                assert response.headers["www-authenticate"] == "Bearer"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        model = client.get("/v1/model", headers=headers)
        assert model.json()["token_required"] is True
        assert TOKEN not in model.text


def test_other_host_names_are_refused_on_loopback(shared: httpx.Client, folder: Path) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[", "0"):
        problem(shared.get("/v1/model", headers={"Host": host}), 421)
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:9"):
        assert shared.get("/v1/model", headers={"Host": host}).status_code == 200
    with running(folder, allowed_hosts=("Box.local",)) as client:
        assert client.get("/healthz", headers={"Host": "box.local:80"}).status_code == 200


def test_other_origins_are_refused(shared: httpx.Client) -> None:
    body = {"images": [text(make_task(0).images[0])]}
    own = f"http://{shared.base_url.host}:{shared.base_url.port}"
    assert shared.post("/v1/predict", json=body, headers={"Origin": own}).status_code == 200
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": f"http://localhost:{(shared.base_url.port or 0) + 1}"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        problem(shared.post("/v1/predict", json=body, headers=headers), 403)
        problem(shared.delete("/v1/tasks/task 0", headers=headers), 403)


def test_html_forms_cannot_change_the_model(shared: httpx.Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        for path in ("/v1/learn", "/v1/undo", "/v1/flush", "/v1/observe", "/v1/classes/rename"):
            response = shared.post(path, content=b"{}", headers={"Content-Type": kind})
            problem(response, 403)


def test_cors_is_closed(shared: httpx.Client) -> None:
    response = shared.get("/v1/model", headers={"Origin": "http://evil.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "DELETE"}
    assert shared.options("/v1/tasks/task 0", headers=preflight).status_code == 405


def test_every_response_has_the_security_headers(shared: httpx.Client) -> None:
    for path in ("/docs", "/v1/model", "/nothing", "/static/nothing"):
        headers = shared.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
    refused = shared.get("/v1/model", headers={"Host": "evil.example"}).headers
    assert refused["x-frame-options"] == "DENY"


def test_limits_are_enforced(small: httpx.Client) -> None:
    image = image_of(8, 8)
    for images, status, message in (
        ([image] * 5, 413, "5 images are too many"),
        ([image_of(200, 100)], 422, "more than 10,000 pixels"),
        ([image_of(100, 99)] * 2, 413, "more than 15,000 pixels"),
        ([bomb(50_000, 50_000)], 422, "more than 10,000 pixels"),
    ):
        assert message in problem(small.post("/v1/predict", json={"images": images}), status)
    assert "more than 200,000 bytes" in problem(
        small.post("/v1/predict", json={"images": ["A" * 300_000]}), 413
    )
    body = {"name": "x", "classes": {str(n): [image] for n in range(501)}}
    assert "501 classes" in problem(small.post("/v1/learn", json=body), 413)


def test_a_body_without_a_length_is_limited(small: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 10_000

    response = small.post(
        "/v1/predict", content=chunks(), headers={"Content-Type": "application/json"}
    )
    problem(response, 413)


def test_a_slow_body_is_aborted(trained: Path) -> None:
    options = ServeOptions(trained, limits=Limits(body_seconds=0.1))
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    async def never() -> Any:
        await asyncio.sleep(10)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/predict",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    started = time.monotonic()
    asyncio.run(Guard(app, options, Metrics())(scope, never, send))
    assert sent[0]["status"] == 408
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"images": 1}',
        b'{"images": []}',
        b'{"images": ["\\ud800"]}',
        b'{"images": ["AA=="], "top_k": 0}',
        b'{"images": ["AA=="], "false_alarm_rate": NaN}',
        b'{"images": ["AA=="], "false_alarm_rate": 1e999}',
        b"[" * 100_000,
        b'{"images": ["data:image/png,x"]}',
        b'{"images": [' + b"1" * 10_000 + b"]}",
        b'\xff\xfe{"images"}',
    ],
)
def test_malformed_json_is_refused(shared: httpx.Client, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    problem(shared.post("/v1/predict", content=body, headers=headers), 422)


@pytest.mark.parametrize("groups", [["a"], ["a"] * 3, []])
def test_groups_must_match_the_images(shared: httpx.Client, groups: list[str]) -> None:
    image = text(make_task(0).images[0])
    detail = problem(
        shared.post("/v1/predict", json={"images": [image] * 2, "groups": groups}), 422
    )
    assert "one group per image" in detail


def test_malformed_forms_are_refused(shared: httpx.Client) -> None:
    image = ("x.png", base64.b64decode(image_of(8, 8)))
    for data, files in (
        ({"top_k": "many"}, [("images", image)]),
        ({"images": "text"}, []),
        ({"nothing": "x"}, [("images", image)]),
        ({"false_alarm_rate": "2"}, [("images", image)]),
        ({}, [("images", ("empty.png", b""))]),
        ({}, [("top_k", image), ("images", image)]),
    ):
        response = shared.post("/v1/predict", data=data, files=files or {"none": b""})
        assert response.status_code == 422, response.text
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert shared.post("/v1/predict", content=b"--y\r\n", headers=headers).status_code in (400, 422)


@pytest.mark.parametrize("charset", ["undefined", "punycode"])
def test_forms_that_cannot_be_decoded_are_refused(shared: httpx.Client, charset: str) -> None:
    headers = {
        "Content-Type": f"multipart/form-data; boundary=x; charset={charset}",
        "X-Remembering": "1",
    }
    for path, field in (("/v1/predict", "top_k"), ("/v1/learn", "name")):
        part = f'--x\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n\\x..a\r\n--x--\r\n'
        response = shared.post(path, content=part.encode(), headers=headers)
        assert "charset" in problem(response, 400)


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"],
)
def test_static_files_stay_in_their_folder(shared: httpx.Client, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared.base_url.port or 0)
    connection.request("GET", path)
    assert connection.getresponse().status == 404


def test_names_never_reach_the_file_system(client: httpx.Client, folder: Path) -> None:
    name = "../../escape\\x/%00"
    body = {"name": name, "classes": classes(2, ("../up", "/etc/passwd"))}
    assert client.post("/v1/learn", json=body).status_code == 202
    while client.get("/v1/jobs").json()["jobs"][0]["status"] in ("queued", "running"):
        time.sleep(0.05)
    problem(client.get("/v1/jobs/..%2f..%2fmodel%2fmanifest"), 404)
    assert {path.name for path in folder.parent.iterdir()} == {"model", "model.serving"}
    stored = [str(path) for path in folder.parent.rglob("*")]
    assert not [path for path in stored if "escape" in path or "passwd" in path]


def test_a_full_job_queue_is_reported(folder: Path) -> None:
    with running(folder, limits=Limits(jobs=1)) as client:
        body = {"name": "one", "classes": classes(2, per_class=100)}
        assert client.post("/v1/learn", json=body).status_code == 202
        response = client.post("/v1/learn", json={**body, "name": "two"})
        assert "1 jobs are waiting" in problem(response, 503)
        assert int(response.headers["retry-after"]) > 0


def test_a_read_only_server_only_predicts(folder: Path) -> None:
    with running(folder, read_only=True) as client:
        image = text(make_task(0).images[0])
        assert client.post("/v1/predict", json={"images": [image]}).status_code == 200
        for response in (
            client.post("/v1/learn", json={"name": "x", "classes": classes(2)}),
            client.delete("/v1/tasks/task 0"),
            client.post("/v1/undo", json={}),
            client.post("/v1/flush", json={}),
        ):
            assert "only reads" in problem(response, 409)
    assert not folder.with_name("model.serving").exists()


def test_a_request_without_a_host_is_refused(shared: httpx.Client) -> None:
    with socket.create_connection(("127.0.0.1", shared.base_url.port or 0)) as connection:
        connection.sendall(b"GET /v1/model HTTP/1.0\r\n\r\n")
        answer = connection.makefile("rb").read()
    assert b" 400 " in answer.splitlines()[0]
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["detail"]
