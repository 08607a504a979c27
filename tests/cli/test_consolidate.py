"""`remember consolidate`: retrain shared adapters on replay images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from remembering.adapters.lora import Adapter
from remembering.cli import main
from remembering.learning import consolidate
from remembering.storage.manifest import read_manifest

from .example import class_folder, fails, files

pytestmark = pytest.mark.integration


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A model whose two tasks share an adapter and have replay images."""
    for i, name in enumerate(("one", "two")):
        images = class_folder(tmp_path / name, (f"a{i}", f"b{i}"), seed=i, per_class=12)
        options = [
            "--backbone",
            "bundled",
            "--epochs",
            "1",
            "--adapters",
            "first",
            "--memory",
            "16",
        ]
        assert main(["learn", str(tmp_path / "model"), str(images), *options]) == 0
    return tmp_path / "model"


def without_training(monkeypatch: pytest.MonkeyPatch, correct: int) -> None:
    """Change the adapter a little instead of training it; so many of 20 answers are correct."""
    outcomes = iter(torch.arange(20) < number for number in (10, correct))

    def trained(state: object, backbone: object, reference: Adapter, *rest: Any) -> Adapter:
        return replace(reference, b=reference.b + 0.01)

    monkeypatch.setattr(consolidate, "_train", trained)
    monkeypatch.setattr(consolidate, "_correct", lambda *_: next(outcomes))


def test_a_better_adapter_replaces_the_old_one(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_manifest(shared).adapters["0"]
    without_training(monkeypatch, 15)
    capsys.readouterr()
    assert main(["consolidate", str(shared)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "adapter 0 ('one', 'two'): replaced" in out
    assert "50.0% before, 75.0% after" in out
    after = read_manifest(shared).adapters["0"]
    assert after.folder != before.folder
    assert after.reference is not None
    assert after.reference.folder == before.folder
    assert main(["predict", str(shared), str(shared.parent / "one" / "a0")]) == 0


def test_an_adapter_that_is_worse_changes_nothing(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(shared)
    without_training(monkeypatch, 5)
    capsys.readouterr()
    assert main(["consolidate", str(shared)]) == 0
    assert "kept, because the new one is worse" in capsys.readouterr().out
    assert files(shared) == before


def test_without_a_shared_adapter_there_is_nothing_to_do(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(model)
    fails(["consolidate", model], capsys, "adapter")
    assert files(model) == before
    fails(["consolidate", tmp_path / "none"], capsys, "none")
