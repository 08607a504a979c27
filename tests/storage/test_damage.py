"""Files that are missing, damaged, or change under a loaded model."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch
from support import TWO_LEVEL, consolidated, forked, learned, make_task

from remembering.backbones.backbone import Backbone
from remembering.config import ClassifierSettings, RouterSettings
from remembering.errors import StorageError
from remembering.model import RememberingTransformer
from remembering.storage.verify import verify

pytestmark = pytest.mark.integration
KINDS = ("adapters", "heads", "routers", "memory")


@pytest.fixture(scope="module")
def saved(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    learned(backbone, 3, capacity=3, memory=4, router=RouterSettings()).save(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def artifact(folder: Path, kind: str, number: int = 1) -> Path:
    """Return the file with the tensors of an artifact."""
    found = next((folder / kind).glob(f"{number:04d}-????????????*"))
    return found / "adapter_model.safetensors" if found.is_dir() else found


def check_files(folder: Path) -> int:
    """Damage each file in turn; return how many files there are."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    for path in files:
        if path.name == "manifest.json":
            continue
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(StorageError, match=f"{path.name}.*SHA-256"):
            RememberingTransformer.load(folder)
        path.write_bytes(data[:-1])
        with pytest.raises(StorageError, match=rf"{path.name}.*{len(data) - 1} bytes instead"):
            RememberingTransformer.load(folder)
        path.unlink()
        with pytest.raises(StorageError, match=f"{path.name} cannot be read"):
            RememberingTransformer.load(folder)
        path.write_bytes(data)
    RememberingTransformer.load(folder)
    return len(files)


def test_every_flipped_byte_and_missing_file_is_named(folder: Path) -> None:
    assert check_files(folder) == 1 + 3 * 6 + 1  # manifest, three tasks, shared


class TestIntactOnly:
    @pytest.fixture
    def broken(self, folder: Path) -> Path:
        path = artifact(folder, "heads")
        path.write_bytes(path.read_bytes()[:-1])
        return path

    def test_the_other_tasks_answer_as_before(
        self, broken: Path, folder: Path, saved: Path
    ) -> None:
        assert [str(broken) in problem for problem in verify(folder)] == [True]
        with pytest.raises(StorageError, match="bytes instead"):
            RememberingTransformer.load(folder)
        rest = RememberingTransformer.load(folder, intact_only=True)
        assert [record.number for record in rest.tasks] == [0, 2]
        whole, images = RememberingTransformer.load(saved), make_task(2).images
        whole.forget("task 1")
        assert torch.equal(rest.predict_proba(images), whole.predict_proba(images))

    def test_a_save_does_not_remove_what_was_damaged(
        self, broken: Path, folder: Path, saved: Path, tmp_path: Path
    ) -> None:
        rest = RememberingTransformer.load(folder, intact_only=True)
        rest.learn(make_task(5, ("x", "y")))
        with pytest.raises(StorageError, match=r"damaged tasks were left out.*overwrite=True"):
            rest.save(folder)
        rest.save(tmp_path / "elsewhere")
        with pytest.raises(StorageError, match="left out"):
            rest.save(folder)
        shutil.copy(artifact(saved, "heads"), broken)  # the file is found in a backup
        assert len(RememberingTransformer.load(folder).tasks) == 3

    def test_overwriting_keeps_the_damaged_state_for_one_more_save(
        self, broken: Path, folder: Path, saved: Path
    ) -> None:
        rest = RememberingTransformer.load(folder, intact_only=True)
        rest.save(folder, overwrite=True)
        assert len(RememberingTransformer.load(folder).tasks) == 2
        shutil.copy(artifact(saved, "heads"), broken)
        assert len(RememberingTransformer.load(folder, previous=True).tasks) == 3

    def test_an_intact_folder_can_be_saved_to(self, folder: Path) -> None:
        model = RememberingTransformer.load(folder, intact_only=True)
        model.learn(make_task(5, ("x", "y")))
        model.save(folder)
        assert len(RememberingTransformer.load(folder).tasks) == 4


@pytest.fixture(scope="module")
def shared(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks of one consolidated adapter, with a logit correction."""
    changes = {"adapters": "first", "memory": 20, "classifier": ClassifierSettings(replay=2)}
    state = learned(backbone, 3, **{**TWO_LEVEL, **changes}).state
    folder = tmp_path_factory.mktemp("shared") / "model"
    RememberingTransformer(backbone, state=consolidated(state, backbone)).save(folder)
    return folder


class TestTwoLevels:
    """Class statistics, domains and references are as safe as the rest."""

    @pytest.fixture
    def folder(self, shared: Path, tmp_path: Path) -> Path:
        return Path(shutil.copytree(shared, tmp_path / "model"))

    def test_every_damaged_file_is_named(self, folder: Path) -> None:
        manifest, adapters, of_router, of_adapter, tasks = 1, 2 * 2, 1, 3, 3 * 5
        assert check_files(folder) == manifest + adapters + of_router + of_adapter + tasks

    @pytest.mark.parametrize("kind", ["classifiers", "references", "routers", "memory"])
    def test_without_a_damaged_task_it_answers_as_if_that_was_forgotten(
        self, kind: str, folder: Path
    ) -> None:
        expected = RememberingTransformer.load(folder)
        expected.forget("task 1")
        path = artifact(folder, kind)
        path.write_bytes(path.read_bytes()[:-1])
        assert [str(path) in problem for problem in verify(folder)] == [True]
        rest = RememberingTransformer.load(folder, intact_only=True)
        assert [record.number for record in rest.tasks] == [0, 2]
        images = make_task(2).images
        assert torch.equal(rest.predict_proba(images), expected.predict_proba(images))
        rest.save(folder.parent / "rest")
        again = RememberingTransformer.load(folder.parent / "rest")
        assert torch.equal(again.predict_proba(images), expected.predict_proba(images))

    @pytest.mark.parametrize("name", ["domains/*", "classifiers/*-shared*", "references/*-shared*"])
    def test_without_what_its_adapter_needs_no_task_is_left(self, name: str, folder: Path) -> None:
        next(folder.glob(name)).unlink()
        assert RememberingTransformer.load(folder, intact_only=True).tasks == ()

    def test_the_tasks_of_other_adapters_are_left(self, backbone: Backbone, tmp_path: Path) -> None:
        learned(backbone, 2, **{**TWO_LEVEL, "adapters": "task"}).save(tmp_path)
        artifact(tmp_path, "domains", 0).unlink()
        rest = RememberingTransformer.load(tmp_path, intact_only=True)
        assert [record.number for record in rest.tasks] == [1]


@pytest.mark.parametrize("how", ["cut", "cut and removed", "flipped", "flipped and removed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_changes_under_a_loaded_model(
    kind: str, how: str, folder: Path, tmp_path: Path
) -> None:
    """An error or the right answer, in a process of its own: reading a cut map would kill it."""
    path, copy, images = artifact(folder, kind), tmp_path / "copy", make_task(1).images
    model = RememberingTransformer.load(folder)
    expected = RememberingTransformer.load(folder).predict(images).probabilities
    if how.startswith("cut"):
        os.truncate(path, 100)
    else:
        with path.open("r+b") as file:  # in place: the same file
            file.seek(-1, os.SEEK_END)
            file.write(b"\x7f")
    if how.endswith("removed"):
        path.unlink()

    def predict() -> None:
        assert torch.equal(model.predict(images).probabilities, expected)

    def replay() -> None:
        assert len(model.state.memories[1].images) == 4

    changed = (1, f"StorageError: {path} has changed since the model was loaded")
    for use, kinds in ((predict, {"adapters"}), (replay, {"memory"})):
        status, message = forked(use)
        assert (status, message[: len(changed[1])]) == (changed if kind in kinds else (0, ""))
    status, message = forked(lambda: model.save(copy))
    if kind in ("adapters", "memory"):
        assert (status, message[: len(changed[1])]) == changed
        assert not (copy / "manifest.json").exists()
    else:  # in memory
        assert (status, message) == (0, "")
        assert verify(copy) == []


def test_a_loaded_model_outlives_its_files(folder: Path, saved: Path, tmp_path: Path) -> None:
    """A writer removes what it no longer needs; a reader still has it."""
    reader = RememberingTransformer.load(folder, cache_bytes=0)
    shutil.rmtree(folder)
    whole, images = RememberingTransformer.load(saved), make_task(1).images
    assert torch.equal(reader.predict(images).probabilities, whole.predict(images).probabilities)
    reader.save(tmp_path / "copy")
    assert verify(tmp_path / "copy") == []


def test_a_lost_file_is_written_again(folder: Path) -> None:
    model = RememberingTransformer.load(folder)
    for kind in KINDS:
        artifact(folder, kind).unlink()
    model.save(folder)
    assert verify(folder) == []


def test_leftovers_of_a_killed_writer_are_removed(folder: Path) -> None:
    model = RememberingTransformer.load(folder)
    model.learn(make_task(9, ("x", "y")))
    model.save(folder)
    weights = artifact(folder, "adapters", 3)
    weights.unlink()
    (weights.parent / ".adapter_model.safetensors.0123abcd.unfinished").write_bytes(b"half")
    (folder / ".manifest.json.0123abcd.unfinished").write_bytes(b"half")
    (folder / "heads" / "0099-0123456789ab.safetensors").write_bytes(b"of a state never reached")
    (folder / "heads" / ".0099-0123456789ab.safetensors.0123abcd.unfinished").write_bytes(b"half")
    (folder / "adapters" / "0099-0123456789ab").mkdir()
    (folder / "adapters" / "0099-0123456789ab" / "adapter_config.json").write_bytes(b"{}")
    model.save(folder)
    assert verify(folder) == []
    assert not list(folder.rglob("*.unfinished"))
    assert not list(folder.rglob("0099-*"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sparse_file_larger_than_memory_is_refused(kind: str, folder: Path) -> None:
    """An archive of some kilobytes can contain it, with the size in the manifest."""
    path = artifact(folder, kind)
    os.truncate(path, 2**39)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][str(path.relative_to(folder))]["bytes"] = 2**39
    (folder / "manifest.json").write_text(json.dumps(manifest))

    def load() -> str:
        resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36))  # where memory is overcommitted
        with pytest.raises(StorageError) as caught:
            RememberingTransformer.load(folder)
        return "\n".join([str(caught.value), *verify(folder)])

    message = f"{path} does not fit into memory"
    assert forked(load) == (0, f"{message}\n{message}")


def test_a_generation_that_cannot_be_counted_on_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"generation": 1', f'"generation": {"9" * 4300}'))
    with pytest.raises(StorageError, match=r"generation = .9{60}. must be below"):
        RememberingTransformer.load(folder)
