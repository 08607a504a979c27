"""Fixtures shared by tests of baselines: the bundled backbone and fine-tuning as a reference."""

from __future__ import annotations

import pytest

from remembering.backbones.backbone import Backbone
from remembering.baselines import Baseline

from .example import on_digits, taught


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    return Backbone.load("bundled")


@pytest.fixture(scope="session")
def finetuned(backbone: Backbone) -> Baseline:
    """Sequential fine-tuning after two tasks."""
    return taught("finetune", backbone)


@pytest.fixture(scope="session")
def finetuning_accuracy(backbone: Backbone) -> float:
    """Accuracy of sequential fine-tuning after five tasks."""
    return on_digits("finetune", backbone)
