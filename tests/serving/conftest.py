"""A model of two tasks on a small random backbone, and servers for copies of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support import learned

from remembering.backbones.backbone import Backbone
from remembering.config import ClassifierSettings, RouterSettings

from .running import running


@pytest.fixture(scope="session")
def trained(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model with the tasks "task 0" and "task 1". Do not modify."""
    folder = tmp_path_factory.mktemp("serving") / "model"
    learned(backbone, 2).save(folder)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the model, for one test."""
    shutil.copytree(trained, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def refinable(backbone: Backbone, tmp_path: Path) -> Path:
    """A model whose tasks can be added to, for one test."""
    gaussian = {"router": RouterSettings(), "classifier": ClassifierSettings()}
    learned(backbone, 2, **gaussian).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def client(folder: Path) -> Iterator[httpx.Client]:
    """A server for a copy of the model."""
    with running(folder) as client:
        yield client


@pytest.fixture(scope="module")
def shared(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server for the tests of a module that do not change the model."""
    folder = tmp_path_factory.mktemp("shared") / "model"
    shutil.copytree(trained, folder)
    with running(folder) as client:
        yield client
