"""Common mistakes in Python are answered with what to write instead."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from support import learned, make_task, png

from remembering import RememberingTransformer, Task, load_tasks
from remembering.backbones.backbone import Backbone
from remembering.errors import InvalidInputError, RememberingError


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("photos/birds", r"not an object of type str; pass Task.from_folder\('photos/birds'\)"),
        (Path("photos/birds"), r"pass Task.from_folder\('photos/birds'\)"),
        (torch.zeros(2, 3, 8, 8), r"type Tensor; pass Task\(name, images, labels\)"),
        ([make_task(0), make_task(1)], "type list; pass one task after another"),
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


def test_merge_takes_a_model(backbone: Backbone) -> None:
    with pytest.raises(InvalidInputError, match=r"type str; pass RememberingTransformer.load\("):
        RememberingTransformer(backbone).merge("other-model")  # type: ignore[arg-type]


def test_one_string_is_no_list_of_labels(backbone: Backbone) -> None:
    images = torch.zeros(4, 1, 8, 8)
    with pytest.raises(InvalidInputError, match="labels are 'rose'; pass a list with one label"):
        Task("flowers", images, "rose")
    with pytest.raises(InvalidInputError, match="labels are '0'; pass a list with one label"):
        learned(backbone, 1).add_images("task 0", images[:1], "0")


def test_names_of_tasks_are_strings(backbone: Backbone) -> None:
    model = learned(backbone, 1)
    with pytest.raises(RememberingError, match="the name of a task is 5; pass a string"):
        model.rename_task("task 0", 5)  # type: ignore[arg-type]
    assert [task.name for task in model.tasks] == ["task 0"]


@pytest.mark.parametrize("tasks", [5, torch.zeros(2, 3, 8, 8), [], ["photos"]])
def test_evaluate_takes_tasks(tasks: Any, backbone: Backbone) -> None:
    with pytest.raises(InvalidInputError, match=r"evaluate takes a Task.*pass Task\(name, "):
        learned(backbone, 1).evaluate(tasks)


def test_load_tasks_shows_bars_on_request(tmp_path: Path) -> None:
    (tmp_path / "owl").mkdir()
    (tmp_path / "owl" / "1.png").write_bytes(png())
    assert len(load_tasks(tmp_path, progress=True)) == 1


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
