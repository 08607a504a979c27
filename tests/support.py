"""Helpers that several test modules share: small random checkpoints, tasks and models."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor

from remembering.adapters.lora import Adapter
from remembering.adapters.peft_format import CONFIG_FILE, WEIGHTS_FILE, unpack_peft
from remembering.backbones.backbone import Backbone
from remembering.config import ClassifierSettings, RouterSettings
from remembering.data.task import Task
from remembering.learning import consolidate
from remembering.learning.checkpoint import Checkpoint
from remembering.model import RememberingTransformer
from remembering.routing import Router
from remembering.state import ModelState

_LONG = os.environ.get("REMEMBERING_LONG")
SHARED = Path(__file__).resolve().parents[2] / "shared"

T = TypeVar("T")
_COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 4,
    "num_channels": 3,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "vit": lambda: transformers.ViTModel(transformers.ViTConfig(**_COMMON)),
    "vit-classifier": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(**_COMMON, num_labels=10)
    ),
    "deit": lambda: transformers.DeiTModel(transformers.DeiTConfig(**_COMMON)),
    "dinov2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**_COMMON)),
    "dinov2-swiglu-classifier": lambda: transformers.Dinov2ForImageClassification(
        transformers.Dinov2Config(**_COMMON, use_swiglu_ffn=True, num_labels=10)
    ),
    "dinov2-registers": lambda: transformers.Dinov2WithRegistersModel(
        transformers.Dinov2WithRegistersConfig(**_COMMON)
    ),
    "dinov3": lambda: transformers.DINOv3ViTModel(
        transformers.DINOv3ViTConfig(**_COMMON, num_register_tokens=2)
    ),
    "dinov3-gated": lambda: transformers.DINOv3ViTModel(
        transformers.DINOv3ViTConfig(**_COMMON, use_gated_mlp=True, rope_theta=10.0)
    ),
    "vit-msn": lambda: transformers.ViTMSNModel(transformers.ViTMSNConfig(**_COMMON)),
    "clip": lambda: transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**_COMMON)),
    "metaclip": lambda: transformers.MetaClip2VisionModel(
        transformers.MetaClip2VisionConfig(**_COMMON)
    ),
    "siglip": lambda: transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**_COMMON)),
    "siglip-headless": lambda: transformers.SiglipVisionModel(
        transformers.SiglipVisionConfig(**_COMMON, vision_use_head=False)
    ),
    "ijepa": lambda: transformers.IJepaModel(transformers.IJepaConfig(**_COMMON)),
}


def sized(short: T, long: T, full: T) -> T:
    """Return the size of a reliability test.

    `short` in `make test`, `long` in `make reliability` (REMEMBERING_LONG=1), and `full` in `make
    reliability-full` (REMEMBERING_LONG=full), which is not bounded in time.
    """
    return full if _LONG == "full" else long if _LONG else short


def make_checkpoint(family: str, folder: Path) -> Path:
    """A random checkpoint of a family in hub layout; all weights random, so that all matter."""
    torch.manual_seed(0)
    model = FAMILIES[family]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    return folder


def png(value: int = 9, side: int = 4) -> bytes:
    """The file of a small grey image."""
    file = io.BytesIO()
    Image.new("L", (side, side), value).save(file, "PNG")
    return file.getvalue()


def make_task(number: int = 0, classes: tuple[Any, ...] = ("a", "b"), per_class: int = 6) -> Task:
    """Images whose classes differ in brightness and whose tasks differ in where they are bright."""
    rng = torch.Generator().manual_seed(number)
    images = torch.randint(0, 60, (len(classes) * per_class, 3, 16, 16), generator=rng)
    for i in range(len(classes)):
        rows = slice(i * per_class, (i + 1) * per_class)
        images[rows, :, 4 * (number % 4) : 4 * (number % 4) + 4] += 60 + 120 * i // len(classes)
    labels = [label for label in classes for _ in range(per_class)]
    return Task(f"task {number}", images.to(torch.uint8), labels)


FAST: dict[str, Any] = {
    "adapters": "task",
    "rank": 1,
    "first_layer": 0,
    "epochs": 3,
    "batch_size": 8,
    "lr": 1e-2,
    "schedule": "constant",
    "augment": "none",
    "router": RouterSettings(kind="subspace"),
    "classifier": ClassifierSettings(kind="head"),
}
"""An adapter per task, as in the paper, with the closed form of its router."""
TWO_LEVEL: dict[str, Any] = {
    "adapters": "novelty",
    "rank": 2,
    "first_layer": 1,
    "epochs": 3,
    "batch_size": 8,
    "lr": 1e-2,
    "router": RouterSettings(),
    "classifier": ClassifierSettings(second_view=0.3),
}
"""The default model, trained for a moment."""


def learned(backbone: Backbone, tasks: int, **changes: Any) -> RememberingTransformer:
    model = RememberingTransformer.from_backbone(backbone, **{**FAST, **changes})
    for number in range(tasks):
        model.learn(make_task(number, (f"a{number}", f"b{number}")))
    return model


def consolidated(state: ModelState, backbone: Backbone) -> ModelState:
    """The state after a consolidation of adapter 0 that was better, without training it."""
    with better_adapter():
        return consolidate.consolidate(state, backbone, 0)[0]


@contextmanager
def better_adapter() -> Iterator[None]:
    """Let a consolidation find a better adapter, without training it."""
    right = torch.ones(20, dtype=torch.bool)
    outcomes = iter((~right, right))

    def trained(state: object, backbone: Backbone, reference: Adapter, *rest: object) -> Adapter:
        return replace(reference, b=1.1 * reference.b)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consolidate, "_train", trained)
        patch.setattr(consolidate, "_correct", lambda *_: next(outcomes))
        yield


def tensors(model: RememberingTransformer) -> dict[str, Tensor]:
    """Every number that a model keeps, sorted by name."""
    result: dict[str, Tensor] = {}
    state = model.state
    for n, adapter in state.adapters.items():
        result |= {f"a{n}": adapter.a, f"b{n}": adapter.b}
    for n, head in state.heads.items():
        result |= {f"w{n}": head.weight, f"c{n}": head.bias}
    routers: dict[str, Router] = {"router": state.router}
    routers |= {f"classifier {n}": part for n, part in state.classifiers.items()}
    for n, reference in state.references.items():
        result |= {f"reference a{n}": reference.adapter.a, f"reference b{n}": reference.adapter.b}
        routers[f"reference {n}"] = reference.classifier
    for name, part in routers.items():
        result |= {f"{name} {key}": value for key, value in part.shared.items()}
        for t, expert in part.experts.items():
            result |= {f"{name} expert {t} {key}": value for key, value in expert.items()}
    for n, domain in state.domains.items():
        result |= {f"domain {n} {key}": value for key, value in vars(domain).items()}
    result |= {f"memory {t}": memory.images for t, memory in model.state.memories.items()}
    return {key: result[key].clone() for key in sorted(result)}


def forked(function: Callable[[], str | None]) -> tuple[int, str]:
    """Run a function in a forked process; returns its exit status and what it returned.

    Signals give negative statuses. An exception gives status 1 and its type and message.
    """
    return started(function)()


def started(function: Callable[[], str | None]) -> Callable[[], tuple[int, str]]:
    """Start a forked process as `forked` does, and return a function that waits for it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status, result = 1, ""
        try:
            torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
            status, result = 0, function() or ""
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, result.encode()[:60_000])
            os._exit(status)
    os.close(writing)

    def wait() -> tuple[int, str]:
        with os.fdopen(reading, "rb") as pipe:
            result = pipe.read().decode()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), result

    return wait


class DiedError(Exception):
    """As if the process had died."""


class Dying(Checkpoint):
    """Saves so many times, and then the process is gone."""

    def write(self, *arguments: Any) -> None:
        super().write(*arguments)
        if int(self.path.with_suffix(".left").read_text()) == 0:
            raise DiedError
        left = int(self.path.with_suffix(".left").read_text())
        self.path.with_suffix(".left").write_text(str(left - 1))


def random_adapter(backbone: Backbone, seed: int, rank: int = 2, first_layer: int = 0) -> Adapter:
    rng = torch.Generator().manual_seed(seed)
    adapter = Adapter.new(backbone, rank, first_layer, rng)
    adapter.b.normal_(0, 0.1, generator=rng)
    return adapter


def read_peft(folder: Path, backbone: Backbone) -> Adapter:
    files = {name: (folder / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)}
    return unpack_peft(files, folder, backbone)


def some_tokens(backbone: Backbone, n: int) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    return backbone.embed(torch.randint(0, 256, (n, 3, 16, 16), generator=rng).to(torch.uint8))
