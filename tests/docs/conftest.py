"""A folder of photos as the documentation describes it, and a stand-in for backbones of the hub."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from remembering.cli import main
from remembering.config import Settings
from remembering.learning import consolidate

TASKS = {
    "README.md": {"birds": ("crow", "owl"), "tools": ("hammer", "saw")},
    "docs": {"flowers": ("rose", "tulip"), "vehicles": ("bus", "train")},
}
MAKES_MODEL = ("README.md", "docs/photos.md", "docs/backbones.md")
"""Pages whose commands create `my-model`; for the others it exists."""


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the hub with small random weights under the names of DINOv2 checkpoints."""
    cache = tmp_path_factory.mktemp("hub")
    torch.manual_seed(0)
    layers = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = transformers.Dinov2Config(**layers, patch_size=28, image_size=224)
    for name in ("small", "base"):
        repository = cache / f"models--facebook--dinov2-{name}"
        snapshot = repository / "snapshots" / ("c" * 40)
        transformers.Dinov2Model(config).save_pretrained(snapshot)
        size = {"size": {"height": 56, "width": 56}}
        (snapshot / "preprocessor_config.json").write_text(json.dumps(size))
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("c" * 40)
    return cache


@pytest.fixture
def offline(hub: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub cannot be reached; the stand-ins are in its cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return hub


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory, hub: Path) -> dict[str, Path]:
    """Folders of photos for the README and for the other pages. Do not modify."""
    made = {}
    for page, tasks in TASKS.items():
        folder = made[page] = tmp_path_factory.mktemp("photos")
        _write_tasks(folder / "photos", tasks, 12)
        _write_tasks(folder / "test-photos", tasks, 4)
        _write_tasks(folder / "more-photos", {"trees": ("oak", "pine")}, 6)
        _write_tasks(folder, {"new-photos": ("rose", "lily")}, 3)
        for i, name in enumerate(("1.jpg", "2.jpg", "beaver-01.png")):
            _write_image(folder / "holiday" / name, 99 + i)
        for i in (1, 2):
            _write_image(folder / f"bus-{i}.jpg", 3)
        rows = [f"{p.relative_to(folder)},{p.parent.name}" for p in _files(folder / "photos")]
        (folder / "stream.csv").write_text("\n".join(["path,label", *rows]))
        checkpoint = next(hub.glob("*small/snapshots/*"))
        shutil.copytree(checkpoint, folder / "path" / "to" / "folder")
    return made


@pytest.fixture(scope="session")
def taught(photos: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned the photos of the pages, on a stand-in by the name of its folder."""
    folder = tmp_path_factory.mktemp("taught") / "my-model"
    here = photos["docs"]
    options = ["--backbone", str(here / "path" / "to" / "folder"), "--epochs", "0"]
    assert main(["learn", str(folder), str(here / "photos"), *options]) == 0
    return folder


@pytest.fixture
def workspace(
    photos: dict[str, Path],
    taught: Path,
    offline: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Path:
    """The current folder while the blocks of a page run: photos, and `my-model` if it exists."""
    page: str = request.getfixturevalue("page")
    folder = tmp_path / "workspace"
    shutil.copytree(photos.get(page, photos["docs"]), folder)
    if page not in MAKES_MODEL:
        shutil.copytree(taught, folder / "my-model")
    _shorten_training(monkeypatch)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    return folder


def _shorten_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train for one epoch where the length of the training is derived from the number of images."""
    train = consolidate.train

    def train_once(*arguments: Any, **options: Any) -> Any:
        *inputs, settings = arguments
        return train(*inputs, replace(settings, epochs=1), **options)

    monkeypatch.setattr(consolidate, "train", train_once)
    monkeypatch.setattr(Settings, "epochs_for", lambda s, *_: 1 if s.epochs is None else s.epochs)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _write_tasks(folder: Path, tasks: dict[str, tuple[str, ...]], per_class: int) -> None:
    for task, classes in tasks.items():
        for label in classes:
            for i in range(1, per_class + 1):
                colour = sum(map(ord, label))
                _write_image(folder / task / label / f"{i}.jpg", colour, seed=i + per_class)


def _write_image(path: Path, colour: int, seed: int = 0) -> None:
    """Write noise in a colour of its own."""
    rng = np.random.default_rng((colour, seed))
    base = np.random.default_rng(colour).integers(0, 32, 3)
    array = (base + rng.integers(0, 32, 3) + rng.integers(0, 192, (36, 40, 3))).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
