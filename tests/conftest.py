"""Small random checkpoints for unit tests, and the real ones where they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command does, before torch

import pytest
import torch
import transformers
from hypothesis import HealthCheck, settings

from remembering.backbone import Backbone
from remembering.tasks.task import Task

# A shared machine stalls now and then: that is no failure of the code under test.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")

SHARED = Path(__file__).resolve().parents[2] / "shared"

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
    "clip": lambda: transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**_COMMON)),
}


def make_checkpoint(family: str, folder: Path) -> Path:
    """A random checkpoint of a family in hub layout; all weights random, so that all matter."""
    torch.manual_seed(0)
    model = FAMILIES[family]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return {family: make_checkpoint(family, folder / family) for family in FAMILIES}


@pytest.fixture(scope="session")
def backbone(checkpoints: dict[str, Path]) -> Backbone:
    """A random ViT of three layers: for unit tests only."""
    return Backbone.load(checkpoints["vit"])


@pytest.fixture(scope="session")
def vit_tiny() -> Path:
    """The pretrained ViT-Ti/16 beside the project."""
    folder = SHARED / "models" / "vit-tiny-patch16-224"
    if not folder.is_dir():
        pytest.skip("the pretrained ViT-Ti/16 is not beside the project")
    return folder


def make_task(number: int = 0, classes: tuple[Any, ...] = ("a", "b"), per_class: int = 6) -> Task:
    """Images whose classes differ in brightness and whose tasks differ in where they are bright."""
    rng = torch.Generator().manual_seed(number)
    images = torch.randint(0, 60, (len(classes) * per_class, 3, 16, 16), generator=rng)
    for i in range(len(classes)):
        rows = slice(i * per_class, (i + 1) * per_class)
        images[rows, :, 4 * (number % 4) : 4 * (number % 4) + 4] += 60 + 120 * i // len(classes)
    labels = [label for label in classes for _ in range(per_class)]
    return Task(f"task {number}", images.to(torch.uint8), labels)
