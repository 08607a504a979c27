"""ONNX files: their answers, metadata, and what prevents them from being written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import TWO_LEVEL

from remembering.backbones.backbone import Backbone
from remembering.cli import main
from remembering.config import RouterSettings, Settings
from remembering.errors import RememberingError, StorageError
from remembering.export import onnx_file
from remembering.export.verify import TOLERANCE, verify
from remembering.model import RememberingTransformer

from .example import hard_task, queries

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
SIZE = 28


def taught(settings: Settings, backbone: Backbone | None = None) -> RememberingTransformer:
    model = RememberingTransformer(backbone or Backbone.load("bundled"), settings)
    for number in range(3):
        model.learn(hard_task(number, (f"a{number}", f"b{number}"), SIZE))
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx")


@pytest.fixture(scope="module")
def one(folder: Path) -> tuple[RememberingTransformer, Path]:
    """A model with one adapter, exported by the command."""
    model = taught(Settings(**{**TWO_LEVEL, "adapters": "first", "memory": 4}))
    model.save(folder / "model")
    file = folder / "one.onnx"
    assert main(["export", str(folder / "model"), "--onnx", str(file)]) == 0
    return model, file


@pytest.fixture(scope="module")
def several(folder: Path, checkpoints: dict[str, Path]) -> tuple[RememberingTransformer, Path]:
    """A model with three adapters, in colour, with rotary positions; two tasks share a label."""
    backbone = Backbone.load(checkpoints["dinov3-gated"])
    model = taught(Settings(**{**TWO_LEVEL, "adapters": "task"}), backbone)
    model.rename_class("task 1", "a1", "a0")
    exported = model.export_onnx(folder / "several.onnx", images=queries(SIZE))
    assert exported.verification.adapters == 3
    return model, exported.path


@pytest.fixture(scope="module")
def paper(folder: Path) -> tuple[RememberingTransformer, Path]:
    """The paper's configuration: autoencoders and heads."""
    model = taught(
        Settings.paper(epochs=2, router=RouterSettings("autoencoder", epochs=40, lr=0.05))
    )
    model.predict(queries(SIZE))  # what is cached by a prediction must not matter
    return model, model.export_onnx(folder / "paper.onnx").path


@pytest.mark.parametrize("name", ["one", "several", "paper"])
def test_answers_are_those_of_predict(name: str, request: pytest.FixtureRequest) -> None:
    model, file = request.getfixturevalue(name)
    session = onnxruntime.InferenceSession(file)
    images = queries(model.backbone.image_size)
    expected = model.predict(images, false_alarm_rate=0.05)
    for size in (1, 5):
        found = [session.run(None, {"images": part.numpy()}) for part in images.split(size)]
        probabilities, p_values, tasks = map(np.concatenate, zip(*found, strict=True))
        np.testing.assert_allclose(probabilities, expected.probabilities, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(p_values, expected.novelty, rtol=0, atol=TOLERANCE)
        assert [model.classes[i] for i in probabilities.argmax(1)] == expected.labels
        assert [model.tasks[i].name for i in tasks] == expected.tasks
    assert float(expected.confidence.min()) < 0.99, "the test is too easy"


def test_metadata_and_shapes(one: tuple[RememberingTransformer, Path]) -> None:
    _, file = one
    session = onnxruntime.InferenceSession(file)
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["labels"]) == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert json.loads(metadata["tasks"]) == ["task 0", "task 1", "task 2"]
    assert metadata["image_size"] == "28"
    preprocessing = json.loads(metadata["preprocessing"])
    assert (preprocessing["resize"], preprocessing["center_crop"]) == (28, 28)
    assert (preprocessing["interpolation"], preprocessing["antialias"]) == ("bilinear", True)
    assert (preprocessing["mean"], preprocessing["std"]) == ([0.5], [0.5])
    saved = RememberingTransformer.load(file.parent / "model")
    assert metadata["model_id"] == saved._saved.model_id != ""
    assert metadata["library_version"] == "0.1.0"
    (images,) = session.get_inputs()
    assert (images.name, images.type) == ("images", "tensor(uint8)")
    assert images.shape == ["batch", 3, 28, 28]
    assert [(item.name, item.type) for item in session.get_outputs()] == [
        ("probabilities", "tensor(float)"),
        ("p_value", "tensor(double)"),
        ("task", "tensor(int64)"),
    ]


def test_the_file_has_no_paths_of_this_machine(
    several: tuple[RememberingTransformer, Path],
) -> None:
    data = several[1].read_bytes()
    assert b"onnx_file" not in data
    assert b"site-packages" not in data
    assert str(ROOT).encode() not in data


def test_the_code_in_the_documentation_runs_without_torch(
    one: tuple[RememberingTransformer, Path], tmp_path: Path
) -> None:
    model, file = one
    (tmp_path / "model.onnx").write_bytes(file.read_bytes())
    image = queries(SIZE)[3]
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / "photo.png")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/export.md").read_text(), re.DOTALL)
    code += "import sys; assert not {'torch', 'remembering'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    label, probability, p_value = done.stdout.split()
    expected = model.predict(image[None], false_alarm_rate=0.05)[0]
    assert label == expected.label
    assert float(probability) == pytest.approx(expected.probability, abs=TOLERANCE)
    assert float(p_value) == pytest.approx(expected.p_value, abs=TOLERANCE)


def test_a_file_with_other_answers_is_not_written(
    one: tuple[RememberingTransformer, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, file = one
    data, path = file.read_bytes(), tmp_path / "model.onnx"
    monkeypatch.setattr(onnx_file, "_convert", lambda *_: data)
    adapters = model.state.adapters
    changed = replace(adapters[0], b=1.02 * adapters[0].b)
    other = model.with_state(replace(model.state, adapters=adapters.with_adapter(0, changed)))
    path.write_bytes(b"before")
    with pytest.raises(RememberingError, match=r"probabilities .* differ by .*nothing was written"):
        other.export_onnx(path, overwrite=True)
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]
    model.export_onnx(path, overwrite=True)
    assert path.read_bytes() == data


def test_verification_uses_replay_images_and_those_given(
    one: tuple[RememberingTransformer, Path],
) -> None:
    model, file = one
    arguments: Any = (file.read_bytes(), model.state, model.backbone, 3, 0.0)
    replay = verify(*arguments)
    assert replay.images == 16 + 3 * 4
    assert replay.adapters == 1
    assert 0 < replay.difference <= TOLERANCE
    assert verify(*arguments, images=queries(40)).images == 16 + 25, "of any size"
    assert verify(*arguments, images=torch.zeros(99, 1, 9, 9)).images == 16 + 64
    with pytest.raises(RememberingError, match="no images to verify with"):
        verify(*arguments, images=[])


def test_a_verification_that_did_not_reach_all_adapters_says_so(
    several: tuple[RememberingTransformer, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, file = several
    monkeypatch.setattr(onnx_file, "_convert", lambda *_: file.read_bytes())
    image = queries(16)[:1]
    monkeypatch.setattr("remembering.export.verify._patterns", lambda *_: image)
    model.export_onnx(tmp_path / "model.onnx", images=image)
    assert "reached 1 of 3 adapters" in caplog.text


def test_the_command(
    one: tuple[RememberingTransformer, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, file = one
    data, photos = file.read_bytes(), file.parent / "photos"
    photos.mkdir()
    for i, image in enumerate(queries(40)[:3]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(photos / f"{i}.png")
    monkeypatch.setattr(onnx_file, "_convert", lambda *_: data)
    arguments = ["export", str(file.parent / "model"), "--onnx", str(file)]
    assert main(arguments) == 1
    assert "exists; give another file, or --overwrite" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--images", str(photos)]) == 0
    out = capsys.readouterr().out
    assert "one.onnx: 3 tasks, 6 classes" in out
    assert "verified on 19 images, answered by 1 of 1 adapter: probabilities differ by" in out


def test_what_prevents_an_export(
    one: tuple[RememberingTransformer, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, file = one
    with pytest.raises(StorageError, match=r"exists; give another file, or pass overwrite=True"):
        model.export_onnx(file)
    with pytest.raises(StorageError, match="is a folder"):
        model.export_onnx(tmp_path)
    with pytest.raises(RememberingError, match="has not learned a task"):
        RememberingTransformer(model.backbone).export_onnx(tmp_path / "x.onnx")
    monkeypatch.setattr(onnx_file, "MAX_BYTES", 1000)
    with pytest.raises(RememberingError, match=r"bytes of weights, and an ONNX file at most 1,000"):
        model.export_onnx(tmp_path / "x.onnx")
    monkeypatch.setattr(onnx_file, "PACKAGES", ("onnx", "missing_package"))
    with pytest.raises(RememberingError, match=r"needs missing_package; .*remembering\[onnx\]"):
        model.export_onnx(tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())
