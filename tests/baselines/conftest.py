"""The bundled backbone, on which rivals learn digits, and what fine-tuning makes of them."""

from __future__ import annotations

import pytest

from remembering.backbones.backbone import Backbone
from remembering.baselines import Baseline

from .example import on_digits, taught


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    return Backbone.load("bundled")


@pytest.fixture(scope="session")
def floor(backbone: Backbone) -> Baseline:
    """Fine-tuned on two tasks."""
    return taught("finetune", backbone)


@pytest.fixture(scope="session")
def forgetful(backbone: Backbone) -> float:
    """What fine-tuning reaches on five."""
    return on_digits("finetune", backbone)
