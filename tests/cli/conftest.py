"""A small trained model that the tests of the commands may modify."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from remembering.cli import main

from .example import FAST, class_folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of one task, and the images of the task in `pets`. Do not modify."""
    folder = tmp_path_factory.mktemp("cli")
    pets = class_folder(folder / "pets")
    assert main(["learn", str(folder / "model"), str(pets), *FAST]) == 0
    return folder


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """A model of one task; the images of the task are in `pets` beside it."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path / "model"
