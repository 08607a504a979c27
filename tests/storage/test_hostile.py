"""Folders whose hashes are consistent, but whose content makes no sense: one sentence each."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from support import TWO_LEVEL, consolidated, learned, make_task
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.config import ClassifierSettings, RouterSettings
from remembering.errors import RememberingError
from remembering.model import RememberingTransformer

pytestmark = pytest.mark.integration

MODELS: dict[str, dict[str, Any]] = {
    "gaussian": {"router": RouterSettings(), "capacity": 2, "memory": 4},
    "two levels": {
        **TWO_LEVEL,
        "adapters": "first",
        "memory": 20,
        "classifier": ClassifierSettings(replay=2),
    },
    "subspace": {},
    "autoencoder": {"router": RouterSettings("autoencoder", epochs=1)},
    "deep autoencoder": {"router": RouterSettings("autoencoder", epochs=1, hidden=4)},
    "frozen": {"head": "frozen"},
}


@pytest.fixture(scope="module")
def saved(
    checkpoints: dict[str, Path], backbone: Backbone, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folders = {}
    for name, settings in MODELS.items():
        folders[name] = tmp_path_factory.mktemp("saved") / "model"
        classifier = Backbone.load(checkpoints["vit-classifier"])
        model = learned(classifier if name == "frozen" else backbone, 2, **settings)
        if name == "two levels":
            model = RememberingTransformer(backbone, state=consolidated(model.state, backbone))
        model.save(folders[name])
    return folders


class Folder:
    """A model folder that can be changed so that its hashes stay consistent."""

    def __init__(self, path: Path):
        self.path = path

    def manifest(self) -> Any:
        return json.loads((self.path / "manifest.json").read_text())

    def edit(self, change: Callable[[Any], object]) -> None:
        """Change the manifest."""
        content = self.manifest()
        change(content)
        (self.path / "manifest.json").write_text(json.dumps(content))

    def write(self, name: str, data: bytes) -> None:
        """Replace a file, and its entry in the manifest."""
        (self.path / name).write_bytes(data)
        entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        self.edit(lambda m: m["files"].update({name: entry}))

    def artifact(self, kind: str) -> str:
        """Return the path of the file with the tensors of one of the artifacts."""
        content = self.manifest()
        task = content["tasks"][1]
        adapter = content["adapters"][str(task["adapter"])]
        reference = adapter["reference"] or {}
        return str(
            {
                "expert": task["expert"],
                "memory": task.get("memory"),
                "head": adapter["head"],
                "adapter": f"{adapter['folder']}/adapter_model.safetensors",
                "config": f"{adapter['folder']}/adapter_config.json",
                "shared": content["shared"],
                "classes": task["classifier"],
                "classes shared": adapter["classifier"],
                "domain": adapter["domain"],
                "reference": task["reference"],
                "reference shared": reference.get("shared"),
                "reference adapter": f"{reference.get('folder')}/adapter_model.safetensors",
            }[kind]
        )

    def tensors(self, kind: str, change: Callable[[dict[str, Tensor]], object]) -> None:
        """Change the tensors of an artifact."""
        name = self.artifact(kind)
        data = (self.path / name).read_bytes()
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        change(tensors)
        tensors = {key: value.contiguous() for key, value in tensors.items()}
        self.write(name, save(tensors, metadata=header.get("__metadata__")))

    def metadata(self, kind: str, metadata: dict[str, str]) -> None:
        name = self.artifact(kind)
        self.write(name, save(load((self.path / name).read_bytes()), metadata=metadata))

    def config(self, number: str | None = None, **changes: Any) -> None:
        """Change the configuration of an adapter, or of all."""
        for n, adapter in self.manifest()["adapters"].items():
            if number in (None, n):
                name = f"{adapter['folder']}/adapter_config.json"
                content = json.loads((self.path / name).read_text())
                self.write(name, json.dumps({**content, **changes}).encode())


Case = tuple[str, Callable[[Folder], object], str]
"""The model, the change, and what the message must contain."""


def put(kind: str, name: str, value: Callable[[Tensor], Tensor]) -> Callable[[Folder], None]:
    return lambda f: f.tensors(kind, lambda t: t.update({name: value(t[name])}))


def drop(kind: str, name: str) -> Callable[[Folder], None]:
    return lambda f: f.tensors(kind, lambda t: t.pop(name))


def first(value: float) -> Callable[[Tensor], Tensor]:
    """Change the first number of a tensor."""

    def change(tensor: Tensor) -> Tensor:
        tensor.view(-1)[0] = value
        return tensor

    return change


def shorter(tensor: Tensor) -> Tensor:
    return tensor[:-1]


def narrower(tensor: Tensor) -> Tensor:
    return tensor[..., :-1]


def edit(*keys: str | int, value: Any) -> Callable[[Folder], None]:
    """Set a value in the manifest."""

    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return lambda f: f.edit(change)


def same_number(content: Any) -> None:
    content["tasks"][1]["number"] = 0


def same_expert(content: Any) -> None:
    content["files"].pop(content["tasks"][1]["expert"])
    content["tasks"][1]["expert"] = content["tasks"][0]["expert"]


def unserved(content: Any) -> None:
    content["tasks"][1]["adapter"] = 0


def file_outside(content: Any) -> None:
    content["tasks"][0]["expert"] = "../../etc/passwd"


def extra_file(content: Any) -> None:
    content["files"]["../notes"] = {"sha256": "0" * 64, "bytes": 3}


def whole(content: bytes) -> Callable[[Folder], object]:
    return lambda f: (f.path / "manifest.json").write_bytes(content)


def relabelled(held_out: object) -> Callable[[Folder], None]:
    """Give replay images the labels of no task, and another number of held-out ones."""
    text = json.dumps({"labels": ["q"] * 4, "held_out": held_out})
    return lambda f: f.metadata("memory", {"memory": text})


NUMBERS: list[Case] = [
    *(
        (model, put(kind, name, first(value)), f"{name} contains NaN")
        for value in (math.nan, math.inf)
        for model, kind, name in (
            ("gaussian", "expert", "sums"),
            ("gaussian", "expert", "calibration_features"),
            ("gaussian", "shared", "correlation"),
            ("two levels", "classes", "sums"),
            ("two levels", "classes shared", "correlation"),
            ("two levels", "classes shared", "logit_correction"),
            ("two levels", "reference", "calibration_features"),
            ("two levels", "reference shared", "temperature"),
            ("two levels", "domain", "mean"),
            ("two levels", "domain", "spread"),
            ("two levels", "domain", "references"),
            ("gaussian", "head", "weight"),
            ("gaussian", "head", "bias"),
            ("subspace", "expert", "basis"),
            ("subspace", "expert", "calibration_scores"),
            ("autoencoder", "expert", "encoder"),
            ("deep autoencoder", "expert", "weight3"),
        )
    ),
    *(
        (model, lambda f, k=kind, v=value: f.tensors(k, lambda t: poison(t, v)), "NaN or inf")
        for model, kind in (("gaussian", "adapter"), ("two levels", "reference adapter"))
        for value in (math.nan, -math.inf)
    ),
    ("gaussian", lambda f: f.tensors("adapter", too_large), "probabilities are not finite"),
    ("two levels", lambda f: f.tensors("adapter", too_large), "not finite"),
    ("gaussian", put("expert", "counts", first(0)), "counts are not numbers of images"),
    ("gaussian", put("expert", "counts", first(-3)), "counts are not numbers of images"),
    ("gaussian", put("expert", "calibration_targets", first(2)), "not classes of the task"),
    ("gaussian", put("expert", "calibration_targets", first(-1)), "not classes of the task"),
    ("gaussian", put("shared", "count", lambda t: t * 0), "count is not positive"),
    ("gaussian", put("shared", "temperature", lambda t: -t), "temperature is not positive"),
    ("gaussian", put("shared", "spread", lambda t: -t), "spread is not a standard deviation"),
    ("gaussian", put("shared", "correlation", lambda t: t * 0 + 2), "is not between -1 and 1"),
    ("gaussian", put("shared", "correlation", lambda t: t * 0 - 1), "not positive definite"),
    ("two levels", put("classes", "counts", first(0)), "classifiers/.*counts are not numbers"),
    ("two levels", put("reference", "counts", first(0)), "references/.*counts are not numbers"),
    ("two levels", put("reference", "calibration_targets", first(2)), "not classes of the task"),
    ("two levels", put("classes shared", "views", lambda t: t + 7), "views is neither 1 nor 2"),
    ("two levels", put("reference shared", "views", lambda t: t * 0), "views is neither 1 nor 2"),
    ("two levels", put("classes shared", "count", lambda t: t * 0), "count is not positive"),
    ("two levels", put("classes shared", "spread", lambda t: -t), "not a standard deviation"),
    ("two levels", put("reference shared", "spread", lambda t: -t), "not a standard deviation"),
    ("two levels", put("classes shared", "correlation", lambda t: t * 0 - 1), "positive definite"),
    ("two levels", put("domain", "count", lambda t: t * 0), "domains/.*count is not a number"),
    ("two levels", put("domain", "spread", lambda t: -t), "spread is not a standard deviation"),
]
SHAPES: list[Case] = [
    *(
        (model, put(kind, name, change), f"{name} is torch")
        for change in (shorter, narrower, lambda t: t[None], lambda t: t[:0])
        for model, kind, name in (
            ("gaussian", "expert", "sums"),
            ("gaussian", "shared", "correlation"),
            ("two levels", "classes", "sums"),
            ("two levels", "classes shared", "correlation"),
            ("two levels", "classes shared", "logit_correction"),
            ("two levels", "reference", "sums"),
            ("two levels", "reference shared", "correlation"),
            ("two levels", "domain", "mean"),
            ("two levels", "domain", "spread"),
            ("subspace", "expert", "basis"),
            ("autoencoder", "expert", "decoder"),
            ("deep autoencoder", "expert", "weight1"),
        )
    ),
    *(
        (model, put(kind, name, lambda t: t.to(torch.bfloat16)), f"{name} is torch.bfloat16")
        for model, kind, name in (
            ("gaussian", "expert", "counts"),
            ("gaussian", "expert", "calibration_features"),
            ("gaussian", "shared", "temperature"),
            ("two levels", "classes", "sums"),
            ("two levels", "classes shared", "views"),
            ("two levels", "domain", "references"),
            ("subspace", "expert", "basis"),
        )
    ),
    *(
        (model, drop(kind, name), "it has .* instead of")
        for model, kind, name in (
            ("gaussian", "expert", "counts"),
            ("gaussian", "shared", "correlation"),
            ("gaussian", "shared", "temperature"),
            ("two levels", "classes", "sums"),
            ("two levels", "classes", "calibration_targets"),
            ("two levels", "classes shared", "views"),
            ("two levels", "reference shared", "correlation"),
            ("subspace", "expert", "calibration_scores"),
            ("deep autoencoder", "expert", "bias4"),
        )
    ),
    ("gaussian", lambda f: f.tensors("expert", lambda t: t.update(x=torch.ones(1))), "instead of"),
    ("gaussian", put("expert", "calibration_features", shorter), "calibration_features is"),
    ("gaussian", put("expert", "calibration_targets", lambda t: t[None]), "calibration_targets is"),
    ("two levels", drop("domain", "references"), "tensors of a domain"),
    ("two levels", put("domain", "references", lambda t: t[:0]), "references is torch"),
    ("two levels", lambda f: f.tensors("reference adapter", widen), "does not fit backbone"),
    ("subspace", put("expert", "calibration_scores", lambda t: t[:0]), "calibration_scores is"),
    ("gaussian", put("head", "weight", shorter), "shape does not fit"),
    ("gaussian", put("head", "weight", narrower), "shape does not fit"),
    ("gaussian", put("head", "bias", lambda t: t.double()), "shape does not fit"),
    ("gaussian", put("head", "columns", lambda t: t + 5), "columns do not fit"),
    ("gaussian", put("head", "columns", shorter), "columns do not fit"),
    ("gaussian", drop("head", "bias"), "tensors of a head"),
    ("gaussian", drop("head", "columns"), "tensors of a head"),
    ("frozen", put("head", "columns", lambda t: t + 10**6), "outputs and all are taken|outputs"),
    ("frozen", put("head", "columns", lambda t: t - 5), "not distinct outputs"),
    ("frozen", put("head", "columns", lambda t: t * 0), "not distinct outputs"),
    ("gaussian", put("memory", "images", lambda t: t.float()), "does not contain images"),
    ("gaussian", put("memory", "images", lambda t: t[0]), "does not contain images"),
    ("gaussian", put("memory", "images", shorter), "do not fit its labels"),
    ("gaussian", put("memory", "images", lambda t: t[:, :2]), "do not fit its labels"),
    ("gaussian", put("memory", "images", lambda t: t[..., :0]), "do not fit its labels"),
    ("gaussian", drop("memory", "images"), "does not contain images"),
    ("gaussian", lambda f: f.tensors("adapter", lambda t: t.popitem()), "does not fit backbone"),
    ("gaussian", lambda f: f.tensors("adapter", widen), "does not fit backbone"),
    ("gaussian", lambda f: f.config("1", r=2), "differ in rank or layers"),
    ("gaussian", lambda f: f.config("1", layers_to_transform=[1, 2]), "differ in rank or layers"),
]
METADATA: list[Case] = [
    ("gaussian", lambda f: f.metadata("head", {}), "has no classes"),
    ("gaussian", lambda f: f.metadata("head", {"classes": "["}), "has no classes"),
    ("gaussian", lambda f: f.metadata("head", {"classes": "[" * 10**5}), "has no classes"),
    ("gaussian", lambda f: f.metadata("head", {"classes": "7"}), "not labels"),
    ("gaussian", lambda f: f.metadata("head", {"classes": '["a1", "a1"]'}), "not labels"),
    ("gaussian", lambda f: f.metadata("head", {"classes": '["a1", 3]'}), "not labels"),
    ("gaussian", lambda f: f.metadata("head", {"classes": '["a1", ["b"]]'}), "not labels"),
    ("gaussian", lambda f: f.metadata("head", {"classes": "[true, false]"}), "not labels"),
    ("gaussian", lambda f: f.metadata("head", {"classes": '["x", "y"]'}), "lacks classes"),
    ("gaussian", lambda f: f.metadata("memory", {"memory": '{"labels": {}}'}), "not labels"),
    ("gaussian", relabelled(0), "not those"),
    *(("gaussian", relabelled(value), "no valid held_out") for value in (5, -1, True, "1", None)),
    *(
        (
            "two levels" if "/" in message else "gaussian",
            lambda f, k=kind, d=data: f.write(f.artifact(k), d),
            message,
        )
        for kind, message in (
            ("expert", "not in the safetensors format"),
            ("head", "not in the safetensors format"),
            ("memory", "not in the safetensors format"),
            ("adapter", "is damaged"),
            ("classes", "classifiers/.*not in the safetensors format"),
            ("classes shared", "classifiers/.*not in the safetensors format"),
            ("domain", "domains/.*not in the safetensors format"),
            ("reference", "references/.*not in the safetensors format"),
        )
        for data in (
            b"\0",
            b"\x80\x04\x95pickle",
            (2**62).to_bytes(8, "little") + b"{}",
            (2).to_bytes(8, "little") + b"{}" + b"rest",
            (10**5).to_bytes(8, "little") + b"[" * 10**5,
        )
    ),
]
CONFIGURATION: list[Case] = [
    ("gaussian", lambda f: f.write(f.artifact("config"), b"["), "not a LoRA configuration"),
    ("gaussian", lambda f: f.write(f.artifact("config"), b"[" * 10**5), "not a LoRA config"),
    ("gaussian", lambda f: f.write(f.artifact("config"), b"[]"), "not a LoRA configuration"),
    ("gaussian", lambda f: f.write(f.artifact("config"), b"{}"), "not a LoRA configuration"),
    *(
        ("gaussian", lambda f, c=changes: f.config(**c), message)
        for changes, message in (
            ({"r": 0}, "not a LoRA configuration"),
            ({"r": "two"}, "not a LoRA configuration"),
            ({"r": math.inf}, "not a LoRA configuration"),
            ({"r": 10**200}, "does not fit backbone"),
            ({"r": 10**12}, "does not fit backbone"),
            ({"r": -1}, "does not fit backbone"),
            ({"lora_alpha": [1]}, "not a LoRA configuration"),
            ({"lora_alpha": math.nan}, "NaN or infinite"),
            ({"lora_alpha": 10**400}, "not a LoRA configuration"),
            ({"layers_to_transform": []}, "not a LoRA configuration"),
            ({"layers_to_transform": [-1, 0, 1, 2]}, "does not fit backbone"),
            ({"layers_to_transform": [-(10**12)]}, "does not fit backbone"),
            ({"layers_to_transform": [0.5]}, "not a LoRA configuration"),
            ({"layers_to_transform": [-0.0, 1]}, "not a LoRA configuration"),
            ({"layers_to_transform": ["0", 1]}, "not a LoRA configuration"),
            ({"layers_to_transform": [0, 2]}, "does not fit backbone"),
            ({"use_dora": True}, "uses use_dora"),
        )
    ),
]
MANIFESTS: list[Case] = [
    ("gaussian", edit("version", value=6), "has version 6.*update the program"),
    ("gaussian", edit("version", value=4), "has version 4.*use the program that wrote it"),
    ("gaussian", edit("version", value="5"), "version = '5' must be of type int"),
    ("gaussian", edit("format", value="other"), "format = 'other'"),
    ("gaussian", edit("surprise", value=1), "unknown setting 'surprise'"),
    ("gaussian", edit("tasks", value=3), "tasks = '3' must be"),
    ("gaussian", edit("next_number", value=math.nan), "next_number"),
    ("gaussian", edit("next_number", value=1), "the task numbers"),
    ("gaussian", edit("next_number", value=10**30), "next_number = 1000.* is out of range"),
    ("gaussian", edit("next_number", value=-1), "is out of range"),
    ("gaussian", edit("generation", value=0), "do not identify a save"),
    ("gaussian", edit("model_id", value="../x"), "do not identify a save"),
    ("gaussian", edit("settings", value={"lr": "fast"}), "settings.lr = 'fast'"),
    ("gaussian", edit("settings", "rank", value=-1), "rank = -1"),
    ("gaussian", edit("settings", "first_layer", value=7), "first_layer = 7"),
    ("gaussian", edit("settings", "router", "layers", value=[99]), "router.layers"),
    ("gaussian", edit("settings", "router", "layers", value=[1]), "sums is torch.float32"),
    ("gaussian", edit("settings", "router", "kind", value="subspace"), "instead of"),
    ("subspace", edit("settings", "router", "latent", value=3), "basis is torch.float32"),
    ("autoencoder", edit("settings", "router", "hidden", value=4), "instead of"),
    ("two levels", edit("settings", "classifier", "layers", value=[1]), "sums is torch.float32"),
    ("two levels", edit("settings", "classifier", "kind", value="head"), "classifier"),
    (
        "gaussian",
        edit("settings", "classifier", "kind", value="gaussian"),
        "must have a classifier",
    ),
    ("gaussian", edit("adapters", "0", "head", value=None), "must have a head"),
    ("two levels", edit("adapters", "0", "classifier", value=None), "must have a classifier"),
    ("two levels", edit("adapters", "0", "reference", value=None), "differ in having a reference"),
    ("two levels", edit("tasks", 0, "classifier", value=None), "differ in having a classifier"),
    ("two levels", edit("tasks", 1, "reference", value=None), "differ in having a reference"),
    ("two levels", edit("adapters", "0", "domain", value="x"), "not a path of a file in domains"),
    ("two levels", edit("tasks", 0, "reference", value="x"), "not a path of a file in references"),
    ("two levels", edit("adapters", "0", "domain", value=None), "is not both used and listed"),
    ("gaussian", edit("adapters", value={}), "is served by adapter 0, which does not exist"),
    ("gaussian", edit("adapters", "x", value={"folder": "a", "head": "b"}), "adapter numbers"),
    ("gaussian", edit("adapters", "01", value={"folder": "a", "head": "b"}), "adapter numbers"),
    ("gaussian", edit("adapters", "²", value={"folder": "a", "head": "b"}), "adapter numbers"),
    ("gaussian", edit("tasks", 0, "name", value="task 1"), "two tasks have the same name"),
    ("gaussian", edit("tasks", 0, "classes", value=[]), "not distinct labels"),
    ("gaussian", edit("tasks", 0, "classes", value=["a", "a"]), "not distinct labels"),
    ("gaussian", edit("tasks", 0, "classes", value=["a", 1]), "not distinct labels"),
    ("gaussian", edit("tasks", 0, "classes", value=["a0", "z"]), "lacks classes"),
    ("gaussian", edit("tasks", 0, "classes", value=["a0"]), "labels are not those of its task"),
    ("gaussian", edit("tasks", 0, "images", value=-4), "has -4 images"),
    ("gaussian", edit("tasks", 0, "expert", value="x"), "not a path of a file in routers"),
    ("gaussian", lambda f: f.edit(same_number), "the task numbers"),
    ("gaussian", lambda f: f.edit(same_expert), "not a path of a file in routers"),
    ("gaussian", lambda f: f.edit(unserved), "adapter 1 serves no task"),
    ("gaussian", lambda f: f.edit(file_outside), "not a path of a file in routers"),
    ("gaussian", lambda f: f.edit(extra_file), "'../notes' is not both used and listed"),
    ("gaussian", edit("files", value={}), "is not both used and listed"),
    ("gaussian", edit("shared", value=None), "is not both used and listed"),
    ("gaussian", lambda f: huge(f, 2**50), "not a SHA-256 and a size"),
    ("gaussian", lambda f: huge(f, 2**39), "bytes instead of 549755813888"),
    ("gaussian", lambda f: huge(f, 0), "not a SHA-256 and a size"),
    ("gaussian", edit("backbone", "fingerprint", value="0"), "was learned on another backbone"),
    ("gaussian", edit("backbone", "image_size", value=10**9), "image size|another backbone"),
    ("gaussian", edit("backbone", "image_size", value=7 * 10**6), "image size 7000000"),
    ("gaussian", edit("backbone", "name", value="~nobody-here/x"), "there is no backbone folder"),
    ("gaussian", edit("backbone", "name", value="a" * 5000), "there is no backbone folder"),
    ("gaussian", edit("backbone", "name", value="\0"), "neither a local folder nor a name"),
    ("gaussian", edit("backbone", "name", value="\ud800"), "neither a local folder nor a name"),
    *(
        ("gaussian", edit("backbone", "revision", value=value), "is not a branch, tag or commit")
        for value in ("/etc/passwd", "../../x", "a/../b", "", "a\0b", "\ud800")
    ),
    ("gaussian", edit("tasks", 0, "images", value=2**63), "has 9223372036854775808 images"),
    ("gaussian", edit("settings", "seed", value=10**301), "settings.seed = '1000.*below 1e"),
    ("gaussian", whole(b""), "is damaged"),
    ("gaussian", whole(b"\xff\xfe\0"), "is damaged"),
    ("gaussian", whole(b"[]"), "must be a table"),
    ("gaussian", whole(b"[" * 10**5), "is damaged"),
    ("gaussian", whole(b'{"version": ' + b"1" * 5000 + b"}"), "is damaged"),
]


def poison(tensors: dict[str, Tensor], value: float) -> None:
    first(value)(next(iter(tensors.values())))


def too_large(tensors: dict[str, Tensor]) -> None:
    for tensor in tensors.values():
        tensor.fill_(1e30)


def widen(tensors: dict[str, Tensor]) -> None:
    name = next(iter(tensors))
    tensors[name] = torch.cat([tensors[name], tensors[name]])


def huge(folder: Folder, size: int) -> None:
    folder.edit(lambda m: m["files"][folder.artifact("expert")].update(bytes=size))


CASES = [*NUMBERS, *SHAPES, *METADATA, *CONFIGURATION, *MANIFESTS]


def use(folder: Path) -> None:
    """Load a model and use every part of it."""
    model = RememberingTransformer.load(folder)
    images = make_task(1).images
    for task in model.tasks:
        model.state.adapters[task.adapter]
    for values in (model.predict(images).probabilities, model.novelty(images)):
        assert values.isfinite().all()
    model.learn(make_task(3, ("x", "y")))


@pytest.mark.parametrize(("model", "change", "message"), CASES, ids=map(str, range(len(CASES))))
def test_a_hostile_folder_is_refused_in_one_sentence(
    model: str,
    change: Callable[[Folder], object],
    message: str,
    saved: dict[str, Path],
    tmp_path: Path,
) -> None:
    folder = Folder(Path(shutil.copytree(saved[model], tmp_path / "model")))
    change(folder)
    before = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()}
    with pytest.raises(RememberingError, match=message) as caught:
        use(folder.path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("model", MODELS)
def test_the_untouched_folders_can_be_used(model: str, saved: dict[str, Path]) -> None:
    use(saved[model])
