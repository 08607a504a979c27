"""A checkpoint folder is untrusted input: loading one never runs code and never blocks."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import make_checkpoint

from remembering.backbones.backbone import Backbone
from remembering.errors import RememberingError

pytestmark = pytest.mark.integration

DEEP = "[" * 100_000
LOAD = """
import sys
from remembering.backbones.backbone import Backbone
from remembering.errors import RememberingError
try:
    Backbone.load(sys.argv[1])
except RememberingError as error:
    print(error)
else:
    print("loaded")
"""


@pytest.fixture
def folder(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a valid checkpoint that a test may change."""
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoints["vit"], copy)
    return copy


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("model_type", ["vit", "custom"])
def test_code_in_a_folder_is_not_run_even_if_standard_input_agrees(
    model_type: str, folder: Path, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    code = (
        f"import pathlib; pathlib.Path({str(canary)!r}).touch()\n"
        "from transformers import ViTConfig, ViTModel\n"
        "class Config(ViTConfig): model_type = 'custom'\n"
        "class Model(ViTModel): config_class = Config\n"
    )
    (folder / "code.py").write_text(code)
    classes = {"AutoConfig": "code.Config", "AutoModel": "code.Model"}
    edit(folder, model_type=model_type, auto_map=classes)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)],
        input="y\n" * 20,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")},
    )
    expected = "loaded" if model_type == "vit" else "model type 'custom'"
    assert expected in done.stdout, done.stdout + done.stderr
    assert "trust_remote_code" not in done.stdout + done.stderr
    assert not canary.exists()


class Payload:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_weights_in_a_pickle_are_refused(folder: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(canary)))
    with pytest.raises(RememberingError, match=r"no model\.safetensors"):
        Backbone.load(folder)
    assert not canary.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": "someone/kernel"},
        {"quantization_config": {"quant_method": "awq"}},
        {"transformers_weights": "pytorch_model.bin"},
        {"architectures": ["PreTrainedModel"]},
        {"architectures": ["BeitForImageClassification"]},
        {"architectures": "ViTModel"},
    ],
)
def test_settings_that_select_other_code_have_no_effect(
    changes: dict[str, Any], folder: Path, backbone: Backbone
) -> None:
    edit(folder, **changes)
    assert Backbone.load(folder).fingerprint() == backbone.fingerprint()


def test_an_adapter_config_does_not_redirect_to_another_model(
    folder: Path, backbone: Backbone, tmp_path: Path
) -> None:
    other = make_checkpoint("vit-classifier", tmp_path / "other")
    spec = {"base_model_name_or_path": str(other), "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(spec))
    assert Backbone.load(folder).fingerprint() == backbone.fingerprint()


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "model.safetensors"])
def test_pipes_are_refused_instead_of_blocking(name: str, folder: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, timeout=60
    )
    assert f"{name} is not a regular file" in done.stdout


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
@pytest.mark.parametrize("text", [DEEP, '{"a": ' + DEEP, "{", "[]", "\ufffd"])
def test_damaged_json_is_named(name: str, text: str, folder: Path) -> None:
    (folder / name).write_text(text)
    with pytest.raises(RememberingError, match=name):
        Backbone.load(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": -1},
        {"hidden_size": 0},
        {"hidden_size": 10**12},
        {"hidden_size": "x"},
        {"num_attention_heads": 0},
        {"num_attention_heads": 5},
        {"patch_size": 0},
        {"patch_size": [4, 2]},
        {"image_size": []},
        {"image_size": "large"},
        {"image_size": 10**9},
        {"num_channels": 0},
        {"num_channels": 2},
        {"hidden_act": "os.system"},
        {"model_type": ["vit"]},
        {"dtype": "no_dtype"},
    ],
)
def test_hostile_configurations_are_refused(changes: dict[str, Any], folder: Path) -> None:
    edit(folder, **changes)
    with pytest.raises(RememberingError, match="checkpoint"):
        Backbone.load(folder)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("dinov3", {"rope_theta": 0.0}),
        ("dinov3", {"rope_theta": -1.0}),
        ("dinov3", {"rope_theta": 1e300}),
        ("dinov3", {"rope_theta": "x"}),
        ("dinov3", {"num_attention_heads": 16}),
        ("dinov3", {"num_register_tokens": 10**9}),
        ("siglip", {"num_attention_heads": 3}),
        ("siglip", {"vision_config": []}),
    ],
)
def test_hostile_configurations_of_other_families(
    family: str, changes: dict[str, Any], checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / family
    shutil.copytree(checkpoints[family], folder)
    edit(folder, **changes)
    with pytest.raises(RememberingError, match="checkpoint"):
        Backbone.load(folder)


@pytest.mark.parametrize("size", [10**6, 16.0, 32, 10])
def test_the_preprocessing_sets_no_size_that_does_not_fit(size: float, folder: Path) -> None:
    spec = {"size": {"height": size, "width": size}}
    (folder / "preprocessor_config.json").write_text(json.dumps(spec))
    assert Backbone.load(folder).image_size == 16


@pytest.mark.parametrize(
    "spec",
    [
        {"image_std": 0},
        {"image_std": [0.5, 0.5, -1.0]},
        {"image_mean": [0.5, 0.5]},
        {"image_mean": float("nan")},
        {"size": {"height": 10**6}, "crop_size": 1, "do_center_crop": True},
        {"size": {"height": 0}, "crop_size": 0, "do_center_crop": True},
        {"size": {"shortest_edge": -5}},
        {"size": {"height": "x"}},
    ],
)
def test_hostile_preprocessing_is_refused(spec: dict[str, Any], folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(spec))
    with pytest.raises(RememberingError, match=r"preprocessor_config\.json"):
        Backbone.load(folder)


def test_weights_that_are_not_finite_are_refused(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[min(tensors)].view(-1)[0] = torch.nan
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(RememberingError, match="NaN or infinite"):
        Backbone.load(folder)


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/etc/passwd", "model.bin"])
def test_shards_outside_the_folder_are_refused(shard: str, folder: Path) -> None:
    weights = folder / "model.safetensors"
    shutil.copy(weights, folder.parent / "outside.safetensors")
    weights.unlink()
    index = {"metadata": {}, "weight_map": {"a": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RememberingError, match=r"index\.json"):
        Backbone.load(folder)
