"""`remember forget`: remove a task."""

from __future__ import annotations

from pathlib import Path

import pytest

from remembering.cli import main
from remembering.storage.manifest import read_manifest

from .example import FAST, class_folder, fails

pytestmark = pytest.mark.unit


def test_forget_removes_a_task(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = class_folder(tmp_path / "birds", ("crow", "duck"), seed=1)
    assert main(["learn", str(model), str(more)]) == 0
    assert main(["forget", str(model), "pets"]) == 0
    assert "forgot 'pets': removed its generative model and adapter 0\n" in capsys.readouterr().out
    assert [task.name for task in read_manifest(model).tasks] == ["birds"]
    fails(["forget", model, "pets"], capsys, "no task 'pets'", "'birds'")


def test_forget_names_the_tasks_that_share_the_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    for i, name in enumerate(("one", "two")):
        images = class_folder(tmp_path / name, (f"a{i}", f"b{i}"), seed=i)
        assert main(["learn", str(model), str(images), *FAST, "--capacity", "1"]) == 0
    capsys.readouterr()
    assert main(["forget", str(model), "one"]) == 0
    assert "6 replay images; adapter 1 remains, because it also serves 'two'" in (
        capsys.readouterr().out
    )
