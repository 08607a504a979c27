"""The service as a whole: models that are replaced, and jobs with nothing to do."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import httpx
import pytest
from support import FAST, learned, make_task

from remembering.backbones.backbone import Backbone
from remembering.model import RememberingTransformer

from .running import classes, finished, problem, running

pytestmark = pytest.mark.integration


def test_another_model_in_the_folder_is_served(
    folder: Path, client: httpx.Client, backbone: Backbone, tmp_path: Path
) -> None:
    """Even if it was saved as often: in deployments, every model is trained anew."""
    other = RememberingTransformer.from_backbone(backbone, **FAST)
    other.learn(make_task(5, ("x", "y")))
    other.save(tmp_path / "other")
    before = client.get("/v1/model").json()["version"]
    folder.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "other", folder)
    for _ in range(200):
        model = client.get("/v1/model").json()
        if model["classes"] == ["x", "y"]:
            break
        time.sleep(0.05)
    assert (model["classes"], model["version"]) == (["x", "y"], before)


def test_flushing_nothing_is_done_at_once(backbone: Backbone, tmp_path: Path) -> None:
    learned(backbone, 1, epochs=None).save(tmp_path / "model")
    with running(tmp_path / "model") as client:
        started = client.post("/v1/flush", json={}).json()["job"]["id"]
        job = finished(client, started)
    assert (job["status"], job["result"]) == ("done", {"learned": [], "waiting": 0})


def test_labels_that_are_one_integer_are_refused(backbone: Backbone, tmp_path: Path) -> None:
    model = RememberingTransformer.from_backbone(backbone, **FAST)
    model.learn(make_task(0, (0, 1)))
    model.save(tmp_path / "model")
    with running(tmp_path / "model") as client:
        for labels, message in ((("7", "07"), "same integer"), (("8", "9" * 30), "64 bits")):
            body = {"name": "new", "classes": classes(1, labels)}
            assert message in problem(client.post("/v1/learn", json=body), 422)
