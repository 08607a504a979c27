"""Small random checkpoints for unit tests, and the real ones where they are."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command does, before torch

import pytest
from hypothesis import HealthCheck, settings
from support import FAMILIES, SHARED, make_checkpoint

from remembering.backbones.backbone import Backbone

# A shared machine stalls now and then: that is no failure of the code under test.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put every test into a tier; those of no other tier are unit tests.

    Files without unit tests come first: they take longest, and short ones at the end let all
    processes finish at the same time.
    """
    for item in items:
        if "reliability" in item.path.parts:
            item.add_marker(pytest.mark.reliability)
        tiers = ("unit", "integration", "reliability")
        if not any(item.get_closest_marker(tier) for tier in tiers):
            item.add_marker(pytest.mark.unit)
    with_units = {item.path for item in items if item.get_closest_marker("unit")}
    items.sort(key=lambda item: item.path in with_units)
