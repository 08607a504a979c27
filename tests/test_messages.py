"""Common mistakes in Python are answered with what to write instead."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from remembering import RememberingTransformer
from remembering.backbones.backbone import Backbone
from remembering.errors import InvalidInputError, RememberingError


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("photos/birds", r"not an object of type str; pass Task.from_folder\('photos/birds'\)"),
        (Path("photos/birds"), r"pass Task.from_folder\('photos/birds'\)"),
        (torch.zeros(2, 3, 8, 8), r"type Tensor; pass Task\(name, images, labels\)"),
        (None, r"type NoneType; pass Task\(name, images, labels\)"),
    ],
)
def test_learn_takes_a_task(task: Any, message: str, backbone: Backbone) -> None:
    with pytest.raises(InvalidInputError, match=message):
        RememberingTransformer(backbone).learn(task)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ranks", "unknown setting 'ranks'; did you mean 'rank'?"),
        ("epoch", "did you mean 'epochs'?"),
        ("zzz", "known are adapters, rank"),
    ],
)
def test_unknown_settings_are_answered_with_the_closest(
    name: str, message: str, backbone: Backbone
) -> None:
    with pytest.raises(RememberingError) as error:
        RememberingTransformer.from_backbone(backbone, **{name: 3})
    assert message in str(error.value)


def test_the_library_prints_nothing_unless_logging_is_configured(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("remembering")
    monkeypatch.setattr(logger, "propagate", False)  # to the handlers of pytest
    logger.warning("for applications")
    assert capfd.readouterr() == ("", "")
