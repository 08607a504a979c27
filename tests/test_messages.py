"""Common mistakes in Python are answered with what to write instead."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from support import png

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


def test_learn_of_a_folder_of_tasks(backbone: Backbone, tmp_path: Path) -> None:
    for name in ("birds/crow", "birds/owl", "cars/bus"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.png").write_bytes(png())
    model = RememberingTransformer(backbone)
    with pytest.raises(InvalidInputError, match=r"pass each task of load_tasks\('.*'\)"):
        model.learn(str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"pass Task.from_folder\('.*birds'\)"):
        model.learn(tmp_path / "birds")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"pass each task of load_tasks\('list.csv'\)"):
        model.learn("list.csv")  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_devices_that_do_not_exist(device: str, backbone: Backbone) -> None:
    message = f"the device '{device}' cannot be used.*; use cpu"
    with pytest.raises(InvalidInputError, match=message):
        RememberingTransformer(backbone).to(device)
    with pytest.raises(InvalidInputError, match=message):
        Backbone.load("bundled", device=device)


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
