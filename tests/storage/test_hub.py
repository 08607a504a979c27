"""Models on the hub: the same folder with a model card; clear errors when offline."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from support import learned, make_task

from remembering.backbones.backbone import Backbone
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.model import RememberingTransformer
from remembering.runtime import hub


@pytest.fixture
def model(backbone: Backbone) -> RememberingTransformer:
    return learned(backbone, 2)


def test_a_saved_folder_has_a_card_and_loads(model: RememberingTransformer, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| task 0 | a0, b0 | 12 | 0 |" in card
    assert "pipeline_tag: image-classification" in card
    loaded = RememberingTransformer.from_pretrained(tmp_path / "model")
    images = make_task(1).images
    assert torch.equal(loaded.predict_proba(images), model.predict_proba(images))
    loaded.learn(make_task(2, ("x", "y")))
    loaded.save_pretrained(tmp_path / "model")
    assert "task 2" in (tmp_path / "model" / "README.md").read_text()


def test_names_cannot_break_the_card(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 0)
    task = make_task(0)
    labels = ["caf\udce9" if label == "a" else label for label in task.labels]
    model.learn(Task("a | <b>\n# c", task.images, labels))
    model.save_pretrained(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| a \\| &lt;b> # c | b, caf\\xe9 |" in card


def test_offline_there_is_one_clear_sentence(
    model: RememberingTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "reachable", lambda: False)
    with pytest.raises(RememberingError, match="is not a local folder, and the hub"):
        RememberingTransformer.from_pretrained("someone/model")
    with pytest.raises(RememberingError, match="'someone/model' cannot be uploaded, and the hub"):
        model.push_to_hub("someone/model")


def test_what_is_uploaded_loads(
    model: RememberingTransformer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uploaded: dict[str, Any] = {}

    class Api:
        def __init__(self, token: str | None = None):
            uploaded["token"] = token

        def create_repo(self, repo_id: str, **options: Any) -> None:
            uploaded["repo"] = repo_id, options["private"]

        def upload_folder(self, *, folder_path: Path, **options: Any) -> Any:
            copy = RememberingTransformer.load(folder_path)
            uploaded["answers"] = copy.predict_proba(make_task(1).images)
            assert (folder_path / "README.md").is_file()
            return SimpleNamespace(commit_url="commit")

    monkeypatch.setattr(hub, "reachable", lambda: True)
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    model.save(tmp_path / "mine")
    assert model.push_to_hub("me/model", private=True, token="secret") == "commit"
    assert uploaded["repo"] == ("me/model", True)
    assert torch.equal(uploaded["answers"], model.predict_proba(make_task(1).images))
    model.learn(make_task(3, ("p", "q")))
    model.save(tmp_path / "mine")


def test_a_download_has_plain_files(
    model: RememberingTransformer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model.save(tmp_path / "remote")

    def snapshot(name: str, *, local_dir: Path, **options: Any) -> None:
        RememberingTransformer.load(tmp_path / "remote").save(local_dir)

    monkeypatch.setenv("REMEMBERING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "reachable", lambda: True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    loaded = RememberingTransformer.from_pretrained("me/model", revision="v1")
    assert [task.name for task in loaded.tasks] == ["task 0", "task 1"]
