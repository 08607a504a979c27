"""Ray: bulk prediction with two workers, and replicas behind one address."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import make_task

from remembering.model import RememberingTransformer
from remembering.serving.options import ServeOptions
from remembering.serving.ray import deployment, predict_files
from remembering.serving.server import bind

from .running import png, problem, text

ray = pytest.importorskip("ray", reason="Ray is not installed; install the extra 'ray'")
pytestmark = pytest.mark.reliability


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A local Ray without dashboard."""
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 1024**2,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()


def test_two_workers_answer_as_a_single_process(
    cluster: None, trained: Path, tmp_path: Path
) -> None:
    images = [image for number in (0, 1) for image in make_task(number, per_class=40).images]
    files = [tmp_path / f"{i:03d}.png" for i in range(len(images))]
    for file, image in zip(files, images, strict=True):
        file.write_bytes(png(image))
    expected = RememberingTransformer.load(trained).predict(files)
    rows: list[dict[str, Any]] = predict_files(trained, files, workers=2).take_all()
    rows.sort(key=lambda row: row["file"])
    assert [Path(row["file"]) for row in rows] == files
    assert [row["label"] for row in rows] == expected.labels
    assert [row["task"] for row in rows] == expected.tasks
    assert [row["adapter"] for row in rows] == expected.adapters.tolist()
    probabilities = [row["probability"] for row in rows]
    assert probabilities == pytest.approx(expected.confidence.tolist(), abs=1e-5)


def test_replicas_predict_and_pick_up_new_states(cluster: None, folder: Path) -> None:
    from ray import serve

    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        options = ServeOptions(folder, port=port, poll_seconds=0.1)
        serve.run(deployment(options, replicas=2), name="remembering", route_prefix="/")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            image = make_task(0).images[0]
            body = {"images": [text(image)]}
            model = RememberingTransformer.load(folder)
            answer = client.post("/v1/predict", json=body).json()
            assert answer["version"] == 1
            assert answer["predictions"][0]["label"] == model.predict(image[None]).labels[0]
            assert "only reads" in problem(client.delete("/v1/tasks/task%200"), 409)
            model.forget("task 0")
            model.save(folder)
            deadline = time.monotonic() + 30
            while {client.post("/v1/predict", json=body).json()["version"] for _ in range(8)} != {
                2
            }:
                assert time.monotonic() < deadline, "the replicas answer with the old state"
    finally:
        serve.shutdown()
