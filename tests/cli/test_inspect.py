"""`remember inspect`: what a model has learned; verified files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from remembering.cli import main
from remembering.storage.manifest import VERSION

from .example import class_folder, fails, files

pytestmark = pytest.mark.unit


def test_table_and_facts(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(trained / "model")]) == 0
    out = capsys.readouterr().out
    for word in ("pets", "cat, dog", "bundled at 28 px", "subspace on layers 0", "footprint"):
        assert word in out


def test_json(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(trained / "model"), "--json"]) == 0
    description = json.loads(capsys.readouterr().out)
    assert description["tasks"][0]["classes"] == ["cat", "dog"]
    assert description["settings"]["router"]["kind"] == "subspace"
    assert description["footprint"]["adapters"] > 0
    assert description["adapters"] == [0]
    assert description["held_out"] is None, "nothing is held out from heads"


def test_held_out_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, pets = tmp_path / "model", class_folder(tmp_path / "pets", per_class=6)
    assert main(["learn", str(model), str(pets), "--backbone", "bundled", "--fast"]) == 0
    capsys.readouterr()
    assert main(["inspect", str(model)]) == 0
    assert re.search(r"pets +cat, dog +12 +0 +\d of 4 \(\d+%\)", capsys.readouterr().out)
    assert main(["inspect", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["held_out"]["pets"]["images"] == 4


def test_verify(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(model), "--verify"]) == 0
    assert "files are intact" in capsys.readouterr().out
    weights = next(model.rglob("adapter_model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    fails(
        ["inspect", model, "--verify"],
        capsys,
        "adapter_model.safetensors",
        "is not the file that was saved",
    )


def test_a_folder_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails(["inspect", tmp_path], capsys, "holds no model")


def test_a_model_of_another_version_is_refused_by_every_command(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = model / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace(f'"version": {VERSION}', '"version": 99'))
    assert manifest.read_text() != text
    before = files(model)
    more = class_folder(tmp_path / "more", ("x", "y"))
    for arguments in (
        ["learn", model, more],
        ["predict", model, more / "x"],
        ["inspect", model],
        ["forget", model, "pets"],
    ):
        fails(arguments, capsys, "version 99")
    assert files(model) == before
