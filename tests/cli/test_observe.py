"""`remember observe`: a stream of labelled images, from folders or a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from remembering.cli import main
from remembering.storage.manifest import read_manifest

from .example import class_folder, fails, files

pytestmark = pytest.mark.integration


def test_a_new_model_learns_the_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class_folder(tmp_path / "data" / "birds", ("crow", "owl"), per_class=4)
    class_folder(tmp_path / "data" / "cars", ("bus", "van"), seed=1, per_class=4)
    arguments = ["observe", str(tmp_path / "m"), str(tmp_path / "data"), "--backbone", "bundled"]
    assert main([*arguments, "--batch-size", "8"]) == 0
    out = capsys.readouterr().out
    tasks = read_manifest(tmp_path / "m").tasks
    assert {label for task in tasks for label in task.classes} == {"bus", "crow", "owl", "van"}
    assert sum(task.images for task in tasks) == 16
    assert out.count("learned '") == len(tasks)
    assert f"now has {len(tasks)} task" in out


def test_a_task_is_saved_while_another_one_is_pending(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from remembering.model import RememberingTransformer

    class_folder(tmp_path / "data" / "birds", ("crow", "owl"), per_class=8)
    class_folder(tmp_path / "data" / "cars", ("bus", "van"), seed=1, per_class=16)
    save, saved = RememberingTransformer.save, []

    def record(self: RememberingTransformer, folder: Path) -> None:
        save(self, folder)
        saved.append([task.classes[0] for task in read_manifest(folder).tasks])

    monkeypatch.setattr(RememberingTransformer, "save", record)
    assert main(["observe", str(model), str(tmp_path / "data"), "--batch-size", "4"]) == 0
    assert saved == [["cat", "crow"], ["cat", "crow", "bus"]]


def test_what_cannot_be_learned_is_left_out(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(model)
    single = class_folder(tmp_path / "single", ("alone",), per_class=1)
    assert main(["observe", str(model), str(single)]) == 0
    captured = capsys.readouterr()
    assert "warning: left out: " in captured.err
    assert "now has 1 task" in captured.out
    assert files(model) == before


def test_known_images_are_recognised(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["observe", str(model), str(tmp_path / "pets")]) == 0
    assert "recognised 6 images of 'pets'" in capsys.readouterr().out


def test_wrong_arguments(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pets = tmp_path / "pets"
    fails(["observe", model, pets, "--batch-size", "0"], capsys, "--batch-size 0")
    fails(["observe", model, pets, "--image-size", "32"], capsys, "omit --image-size")
    (pets / "cat" / "bad.png").write_bytes(b"nothing")
    fails(["observe", model, pets, "--strict"], capsys, "bad.png")
