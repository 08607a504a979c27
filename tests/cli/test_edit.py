"""`remember add`, `rename`, `forget --label`, `merge` and `undo`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from remembering.cli import main
from remembering.model import RememberingTransformer
from remembering.storage.manifest import PREVIOUS, TaskEntry, read_manifest
from remembering.storage.verify import verify

from .example import class_folder, fails

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the default router and classifier, which can be edited. Do not modify."""
    folder = tmp_path_factory.mktemp("edit")
    pets = class_folder(folder / "pets", per_class=4)
    assert (
        main(["learn", str(folder / "model"), str(pets), "--backbone", "bundled", "--epochs", "1"])
        == 0
    )
    return folder / "model"


@pytest.fixture
def model(taught: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(taught, tmp_path / "model"))


def task(model: Path, position: int = 0) -> TaskEntry:
    assert verify(model) == []
    return read_manifest(model).tasks[position]


def test_images_and_classes_are_added(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = class_folder(tmp_path / "more", ("cat", "fox"), seed=1)
    assert main(["add", str(model), "pets", str(more)]) == 0
    assert "added 6 images to 'pets'; new classes: 'fox'" in capsys.readouterr().out
    assert (task(model).classes, task(model).images) == (("cat", "dog", "fox"), 14)
    single = class_folder(tmp_path / "single", ("cat", "owl"), seed=2, per_class=1)
    fails(["add", model, "pets", single], capsys, "'owl' needs at least two images")
    assert task(model).images == 14, "all or nothing"


def test_tasks_and_classes_are_renamed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rename", str(model), "pets", "animals"]) == 0
    assert main(["rename", str(model), "animals", "wolf", "--label", "dog"]) == 0
    assert "renamed 'dog' to 'wolf'" in capsys.readouterr().out
    assert (task(model).name, task(model).classes) == ("animals", ("cat", "wolf"))
    fails(["rename", model, "animals", "x", "--label", "dog"], capsys, "no class 'dog'")


def test_a_class_is_forgotten(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forget", str(model), "pets", "--label", "dog"]) == 0
    assert "removed class 'dog' from 'pets'" in capsys.readouterr().out
    assert task(model).classes == ("cat",)
    fails(["forget", model, "pets", "--label", "cat"], capsys, "forget the task")


def test_models_are_merged(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(shutil.copytree(model, tmp_path / "other"))
    fails(["merge", model, other], capsys, "both models have a task named 'pets'")
    assert main(["rename", str(other), "pets", "more pets"]) == 0
    before = (other / "manifest.json").read_bytes()
    assert main(["merge", str(model), str(other)]) == 0
    assert "now has 2 tasks and 2 adapters" in capsys.readouterr().out
    assert [task(model, i).name for i in (0, 1)] == ["pets", "more pets"]
    assert (other / "manifest.json").read_bytes() == before


def test_undo_restores_the_previous_state_and_undoes_itself(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not (model / PREVIOUS).exists()
    fails(["undo", model], capsys, "holds no previous state")
    open_model = RememberingTransformer.load(model)
    assert main(["rename", str(model), "pets", "animals"]) == 0
    for name, other in (("pets", "animals"), ("animals", "pets"), ("pets", "animals")):
        assert main(["undo", str(model)]) == 0
        assert f": '{other}' is '{name}' again\n" in capsys.readouterr().out
        assert task(model).name == name
    open_model.rename_task("pets", "x")
    with pytest.raises(Exception, match="a newer state"):
        open_model.save(model)


def test_undo_says_what_changed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = class_folder(tmp_path / "more", ("cat", "fox"), seed=1)

    def undone(*command: object) -> str:
        assert main([str(word) for word in command]) == 0
        capsys.readouterr()
        assert main(["undo", str(model)]) == 0
        return capsys.readouterr().out.splitlines()[0].partition(": ")[2]

    assert undone("add", model, "pets", more) == (
        "class 'fox' is gone from 'pets'; 'pets' has 8 images again"
    )
    renamed = undone("rename", model, "pets", "wolf", "--label", "dog")
    assert renamed == "class 'wolf' of 'pets' is 'dog' again"
    assert undone("forget", model, "pets", "--label", "dog") == (
        "class 'dog' is back in 'pets'; 'pets' has 8 images again"
    )
    assert undone("forget", model, "pets") == "'pets' is back"
    assert undone("learn", model, more, "--fast") == "'more' is gone"


def test_unreadable_images_are_not_added(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = class_folder(tmp_path / "more", ("cat", "fox"), seed=1)
    (more / "cat" / "bad.png").write_bytes(b"nothing")
    fails(["add", model, "pets", more, "--strict"], capsys, "cat/bad.png is not an image")
    assert main(["add", str(model), "pets", str(more)]) == 0
    captured = capsys.readouterr()
    assert "added 6 images to 'pets'" in captured.out
    assert "warning: skipped: " in captured.err


def test_undo_restores_a_forgotten_task(model: Path) -> None:
    before = task(model)
    assert main(["forget", str(model), "pets"]) == 0
    assert read_manifest(model).tasks == ()
    assert main(["undo", str(model)]) == 0
    assert task(model) == before
    assert RememberingTransformer.load(model).state.shares[0].parts
