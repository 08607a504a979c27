"""`remember learn`: create and extend models; interrupt and resume."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from remembering.cli import main
from remembering.learning.checkpoint import Checkpoint
from remembering.model import RememberingTransformer
from remembering.storage.manifest import read_manifest

from .example import FAST, class_folder, fails, files

pytestmark = pytest.mark.integration


def test_learn_extends_a_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = class_folder(tmp_path / "birds", ("crow", "duck", "owl"), seed=1)
    assert main(["learn", str(model), str(more), "--name", "things with wings"]) == 0
    assert "learned 'things with wings': 3 classes, 9 images" in capsys.readouterr().out
    assert main(["inspect", str(model), "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert [task["name"] for task in tasks] == ["pets", "things with wings"]
    assert tasks[1]["classes"] == ["crow", "duck", "owl"]


def test_settings_of_one_task_may_change(model: Path, tmp_path: Path) -> None:
    more = class_folder(tmp_path / "birds", ("crow", "duck"), seed=1)
    assert main(["learn", str(model), str(more), "--epochs", "2", "--lr", "0.01"]) == 0
    settings = read_manifest(model).settings
    assert (settings.epochs, settings.lr, settings.router.kind) == (2, 0.01, "subspace")


def test_options_that_created_a_model_may_be_repeated(tmp_path: Path) -> None:
    """The stored settings are resolved; layers of the default model are given explicitly."""
    options = ["--backbone", "bundled", "--epochs", "1", "--memory", "4"]
    options += ["--router.layers", "1", "--classifier.layers", "6"]
    for i, name in enumerate(("one", "two")):
        images = class_folder(tmp_path / name, (f"a{i}", f"b{i}"), seed=i)
        assert main(["learn", str(tmp_path / "m"), str(images), *options]) == 0
    settings = read_manifest(tmp_path / "m").settings
    assert (settings.router.layers, settings.classifier.layers) == ((1,), (6,))


def test_capacity_memory_and_consolidation_may_change(tmp_path: Path) -> None:
    model = tmp_path / "model"
    first = ["--backbone", "bundled"]
    options = [first, ["--capacity", "1", "--memory", "4", "--augment", "none"]]
    for i, more in enumerate(options):
        images = class_folder(tmp_path / f"task {i}", (f"a{i}", f"b{i}"), seed=i)
        assert main(["learn", str(model), str(images), "--epochs", "1", *more]) == 0
    manifest = read_manifest(model)
    assert (manifest.settings.capacity, manifest.settings.memory) == (1, 4)
    assert [task.adapter for task in manifest.tasks] == [0, 0]
    assert [task.memory is not None for task in manifest.tasks] == [False, True]


def test_unsuitable_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    fails(["learn", model, tmp_path / "none"], capsys, "none is not a folder")
    (tmp_path / "empty").mkdir()
    fails(["learn", model, tmp_path / "empty"], capsys, "has no class folders")
    one = class_folder(tmp_path / "one", ("cat",))
    fails(["learn", model, one], capsys, "only the class 'cat'")
    few = class_folder(tmp_path / "few")
    for i in (1, 2):
        (few / "dog" / f"{i}.png").unlink()
    fails(["learn", model, few], capsys, "class 'dog'", "one image")
    assert not model.exists()


def test_a_damaged_image_leaves_the_model_unchanged(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(model)
    bad = class_folder(tmp_path / "bad", ("x", "y"))
    (bad / "y" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    fails(["learn", model, bad, "--strict"], capsys, "y/1.png")
    assert files(model) == before


def test_unreadable_images_are_left_out_and_listed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = class_folder(tmp_path / "bad", ("x", "y"))
    (bad / "y" / "1.png").write_bytes(b"nothing")
    assert main(["learn", str(model), str(bad)]) == 0
    captured = capsys.readouterr()
    assert "warning: skipped: " in captured.err
    assert "y/1.png is not an image" in captured.err
    assert "learned 'bad': 2 classes, 5 images" in captured.out


def test_several_tasks_are_learned_one_after_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class_folder(tmp_path / "data" / "birds", ("crow", "owl"))
    class_folder(tmp_path / "data" / "cars", ("bus", "van"), seed=1)
    assert main(["learn", str(tmp_path / "m"), str(tmp_path / "data"), *FAST]) == 0
    out = capsys.readouterr().out
    assert out.index("learned 'birds'") < out.index("learned 'cars'")
    assert [task.name for task in read_manifest(tmp_path / "m").tasks] == ["birds", "cars"]
    named = ["learn", tmp_path / "n", tmp_path / "data", "--name", "x"]
    fails(named, capsys, "--name is for one task", "has 2")
    class_folder(tmp_path / "data" / "last", ("alone",))
    fails(["learn", tmp_path / "n", tmp_path / "data", *FAST], capsys, "only the class 'alone'")
    assert not (tmp_path / "n").exists(), "checked before the first task is learned"


def test_tasks_of_a_folder_that_are_learned_already_are_skipped(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user adds a task folder and runs the same command again."""
    data = tmp_path / "data"
    shutil.copytree(tmp_path / "pets", data / "pets")
    class_folder(data / "birds", ("crow", "owl"), seed=1)
    assert main(["learn", str(model), str(data)]) == 0
    out = capsys.readouterr().out
    assert "'pets' is already learned\n" in out
    assert "learned 'birds'" in out
    assert out.endswith("now has 2 tasks, 4 classes and 2 adapters\n")
    before = files(model)
    assert main(["learn", str(model), str(data)]) == 0
    assert files(model) == before
    class_folder(data / "cars", ("bus", "van"), seed=2)
    (data / "pets" / "dog" / "0.png").unlink()
    fails(["learn", model, data], capsys, "'pets' is already learned", "add the images to it")
    assert files(model) == before, "checked before the first task is learned"
    fails(["learn", model, data / "birds"], capsys, "'birds' is already learned")


class TestReport:
    def test_accuracy_and_warnings(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ["--backbone", "bundled", "--fast"]
        for i, name in enumerate(("pets", "cars")):
            images = class_folder(tmp_path / name, (f"a{i}", f"b{i}"), seed=i, per_class=12)
            assert main(["learn", str(tmp_path / "m"), str(images), *options]) == 0
        captured = capsys.readouterr()
        first, accuracy, _, second, both, last = captured.out.splitlines()
        assert re.fullmatch(r"learned 'pets': 2 classes, 24 images, [\d.]+ s, adapter 0", first)
        text = "  accuracy on held-out training images:"
        assert re.fullmatch(rf"{text} \d of 8 \(\d+%\)", accuracy)
        assert second.endswith("adapter 0, shared with 1 other task")
        assert re.fullmatch(rf"{text} \d of 8 \(\d+%\); all 2 tasks: \d+ of 16 \(\d+%\)", both)
        assert last.endswith("now has 2 tasks, 4 classes and 1 adapter")
        assert captured.err.count("warning: the bundled backbone has seen nothing but grey") == 2

    def test_heads_hold_nothing_out(
        self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        images = class_folder(tmp_path / "birds", ("crow", "owl"), seed=1)
        assert main(["learn", str(model), str(images)]) == 0
        captured = capsys.readouterr()
        assert "accuracy" not in captured.out
        assert "2 of the 2 classes of 'birds' have fewer than 10 images" in captured.err


class TestFast:
    def test_nothing_is_trained_and_the_settings_stay(self, tmp_path: Path) -> None:
        model, pets = tmp_path / "m", class_folder(tmp_path / "pets")
        assert main(["learn", str(model), str(pets), "--backbone", "bundled", "--fast"]) == 0
        loaded = RememberingTransformer.load(model)
        assert not loaded.state.adapters[0].b.any(), "an adapter without effect"
        assert loaded.settings.epochs is None, "the next task may be trained"

    def test_contradictions(self, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
        data = model.parent / "pets"
        fails(["learn", model, data, "--fast", "--epochs", "2"], capsys, "omit --epochs")
        fails(["learn", model, data, "--name", "x", "--fast"], capsys, "heads", "must be")


def test_a_table_is_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pets = class_folder(tmp_path / "pets")
    rows = [f"{p.relative_to(tmp_path)},{p.parent.name}" for p in sorted(pets.rglob("*.png"))]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    assert main(["learn", str(tmp_path / "m"), str(tmp_path / "list.csv"), *FAST]) == 0
    assert "learned 'list': 2 classes, 6 images" in capsys.readouterr().out


def test_photos_without_a_backbone_never_use_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    pets = class_folder(tmp_path / "pets")
    assert main(["learn", str(tmp_path / "m"), str(pets)]) == 1
    selected, error = capsys.readouterr().err.splitlines()
    assert selected.startswith("selected the backbone 'facebook/dinov2-small': ")
    assert (
        "go online once, or give a local folder in hub layout as the backbone (--backbone)" in error
    )
    assert not (tmp_path / "m").exists()


def test_small_grey_images_use_the_bundled_backbone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pets = class_folder(tmp_path / "pets")
    for path in pets.rglob("*.png"):
        Image.open(path).convert("L").save(path)
    assert main(["learn", str(tmp_path / "m"), str(pets), *FAST[2:]]) == 0
    assert "selected the backbone 'bundled': the images are grey" in capsys.readouterr().err


def test_what_cannot_change_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(model)
    more = class_folder(tmp_path / "more", ("x", "y"))
    fails(["learn", model, tmp_path / "pets"], capsys, "already learned")
    fails(["learn", model, more, "--rank", "7"], capsys, "rank = 1", "cannot be changed")
    wider = ["learn", model, more, "--router.latent", "3"]
    fails(wider, capsys, "router.latent = 1", "omit --router.latent")
    shared = ["learn", model, more, "--adapters", "first", "--classifier.kind", "gaussian"]
    fails(shared, capsys, "adapters = task", "cannot be changed")
    fails(["learn", model, more, "--classifier.shrinkage", "2"], capsys, "classifier.shrinkage")
    fails(["learn", model, more, "--image-size", "56"], capsys, "image_size = 28")
    fails(["learn", model, more, "--capacity", "0"], capsys, "capacity = 0 must be at least 1")
    assert files(model) == before


def test_a_folder_with_other_files_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    pets = class_folder(tmp_path / "x" / "pets")
    fails(["learn", tmp_path, pets], capsys, "is not empty and contains no model")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def interrupt_after(saves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise KeyboardInterrupt after some checkpoints were written."""
    write, written = Checkpoint.write, []

    def write_and_stop(self: Checkpoint, *arguments: Any) -> None:
        write(self, *arguments)
        written.append(self.path)
        if len(written) == saves:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "write", write_and_stop)


def record_resumed_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the step of every checkpoint that is read."""
    read, steps = Checkpoint.read, []

    def read_and_record(self: Checkpoint, *arguments: Any) -> int:
        steps.append(read(self, *arguments))
        return steps[-1]

    monkeypatch.setattr(Checkpoint, "read", read_and_record)
    return steps


class TestResume:
    @pytest.mark.integration
    @pytest.mark.parametrize(
        "options",
        [
            [],
            ["--capacity", "1", "--memory", "4"],
            ["--classifier.kind", "gaussian", "--router.kind", "gaussian", "--memory", "4"],
        ],
        ids=["paper", "paper with capacity", "class Gaussians"],
    )
    @pytest.mark.parametrize("tasks", [0, 1, 2])
    def test_the_command_printed_after_ctrl_c_resumes_the_task(
        self,
        tasks: int,
        options: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        whole, cut = tmp_path / "whole", tmp_path / "cut"

        def learn(model: Path, task: int) -> list[str]:
            return ["learn", str(model), str(folders[task]), *FAST, "--epochs", "4", *options]

        folders = [
            class_folder(tmp_path / f"task {i}", (f"a{i}", f"b{i}"), seed=i)
            for i in range(tasks + 1)
        ]
        for task in range(tasks):
            assert main(learn(cut, task)) == 0
        if tasks:
            shutil.copytree(cut, whole)
        before = files(cut)
        with monkeypatch.context() as patch:
            interrupt_after(2, patch)
            assert main(learn(cut, tasks)) == 130
        assert {k: v for k, v in files(cut).items() if not k.startswith("progress")} == before
        program, *words = shlex.split(capsys.readouterr().err.partition("Resume with: ")[2])
        assert program == "remember"
        with monkeypatch.context() as patch:
            steps = record_resumed_steps(patch)
            assert main(words) == 0
            assert steps == [2]
        assert main(learn(whole, tasks)) == 0
        assert files(cut) == files(whole)

    def test_a_task_that_is_saved_needs_no_resuming(
        self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """As after a process that was killed between saving and exiting."""
        before = files(model)
        (model / "progress.safetensors").write_bytes(b"left over")
        assert main(["learn", str(model), str(tmp_path / "pets"), *FAST, "--resume"]) == 0
        assert "'pets' is already learned" in capsys.readouterr().out
        assert files(model) == before

    def test_another_task_of_the_same_name_is_not_taken_for_the_saved_one(
        self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other = class_folder(tmp_path / "other", ("x", "y"))
        fails(["learn", model, other, "--name", "pets", "--resume"], capsys, "already learned")

    def test_an_interrupt_after_saving_is_reported_as_such(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        from remembering.model import RememberingTransformer

        save = RememberingTransformer.save

        def save_and_stop(self: RememberingTransformer, folder: Path) -> None:
            save(self, folder)
            raise KeyboardInterrupt

        monkeypatch.setattr(RememberingTransformer, "save", save_and_stop)
        pets = class_folder(tmp_path / "pets")
        assert main(["learn", str(tmp_path / "m"), str(pets), *FAST]) == 130
        assert "the task is learned and saved" in capsys.readouterr().err

    def test_an_interrupted_folder_of_tasks_is_resumed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class_folder(tmp_path / "data" / "birds", ("crow", "owl"))
        class_folder(tmp_path / "data" / "cars", ("bus", "van"), seed=1)
        whole, cut = (["learn", str(tmp_path / m), str(tmp_path / "data")] for m in "wc")
        assert main([*whole, *FAST, "--epochs", "4"]) == 0
        with monkeypatch.context() as patch:
            interrupt_after(6, patch)  # in the second task
            assert main([*cut, *FAST, "--epochs", "4"]) == 130
        assert "interrupted; 'birds' learned and saved. Resume with:" in capsys.readouterr().err
        steps = record_resumed_steps(monkeypatch)
        assert main([*cut, *FAST, "--epochs", "4", "--resume"]) == 0
        assert steps == [2]
        assert "'birds' is already learned" in capsys.readouterr().out
        one, other = (read_manifest(tmp_path / m).files for m in "wc")
        assert one == other, "the same bits"
