"""A model on disk: the same answers after loading, and damage is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import FAST, learned, make_task, tensors

from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings
from remembering.errors import RememberingError
from remembering.model import RememberingTransformer
from remembering.storage import store
from remembering.storage.manifest import read_manifest


@pytest.fixture
def folder(backbone: Backbone, tmp_path: Path) -> Path:
    learned(backbone, 3, capacity=2, memory=4).save(tmp_path / "model")
    return tmp_path / "model"


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("changes", [{}, {"capacity": 2, "memory": 4}, {"first_layer": 1}])
def test_loads_bit_for_bit(changes: dict[str, Any], backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 3, **changes)
    model.save(tmp_path)
    again = RememberingTransformer.load(tmp_path)
    before, after = tensors(model), tensors(again)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert again.tasks == model.tasks
    assert again.settings == model.settings
    images = make_task(1).images
    assert torch.equal(again.predict(images).probabilities, model.predict(images).probabilities)


def test_goes_on_learning_as_if_never_saved(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2, capacity=2, memory=4)
    model.save(tmp_path)
    again = RememberingTransformer.load(tmp_path)
    for each in (model, again):
        each.learn(make_task(2, ("x", "y")))
    one, two = tensors(model), tensors(again)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_the_footprint_is_what_the_files_hold(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2, router=RouterSettings())
    model.save(tmp_path)
    stored = [load_file(path) for path in tmp_path.rglob("*.safetensors")]
    assert model.footprint().bytes == sum(t.nbytes for file in stored for t in file.values())
    assert model.footprint().bytes > 4 * model.footprint().parameters


def test_the_frozen_head_is_not_stored(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    model = learned(Backbone.load(checkpoints["vit-classifier"]), 2, head="frozen")
    model.save(tmp_path)
    again = RememberingTransformer.load(tmp_path)
    images = make_task(0).images
    assert torch.equal(again.predict(images).probabilities, model.predict(images).probabilities)
    assert sum(path.stat().st_size for path in (tmp_path / "heads").iterdir()) < 1000


def test_saving_again_rewrites_nothing_but_what_is_new(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2)
    model.save(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    model.learn(make_task(2, ("x", "y")))
    model.save(tmp_path)
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())


def test_absorbed_adapters_are_removed(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert len(manifest["adapters"]) == len(list((folder / "adapters").iterdir())) == 2
    assert set(snapshot(folder)) == {*manifest["files"], "manifest.json"}


def test_a_save_that_dies_leaves_the_model_before(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = RememberingTransformer.load(folder)
    before = model.predict(make_task(0).images).probabilities
    model.learn(make_task(5, ("x", "y")))
    real = store.write_atomic
    for allowed in range(6):  # two files of the adapter, head, expert, memory, manifest
        written: list[Path] = []
        copy = tmp_path / f"copy {allowed}"
        shutil.copytree(folder, copy)

        def dies(path: Path, data: bytes, written: list[Path] = written, n: int = allowed) -> None:
            if len(written) == n:
                raise OSError("no space left on device")
            written.append(path)
            real(path, data)

        monkeypatch.setattr(store, "write_atomic", dies)
        with pytest.raises(OSError, match="no space"):
            model.save(copy)
        after = RememberingTransformer.load(copy)
        assert len(after.tasks) == 3
        assert torch.equal(after.predict(make_task(0).images).probabilities, before)
        monkeypatch.setattr(store, "write_atomic", real)
        model.save(copy)
        assert len(RememberingTransformer.load(copy).tasks) == 4


def test_a_first_save_that_dies_does_not_block_the_folder(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = learned(backbone, 1)
    real = store.write_atomic
    for allowed in range(5):  # two files of the adapter, head, expert, manifest
        written: list[Path] = []

        def dies(path: Path, data: bytes, written: list[Path] = written, n: int = allowed) -> None:
            if len(written) == n:
                raise OSError("no space left on device")
            written.append(path)
            real(path, data)

        folder = tmp_path / str(allowed)
        monkeypatch.setattr(store, "write_atomic", dies)
        with pytest.raises(OSError, match="no space"):
            model.save(folder)
        monkeypatch.setattr(store, "write_atomic", real)
        assert not store.in_use(folder)
        model.save(folder)
        assert len(RememberingTransformer.load(folder).tasks) == 1


def test_labels_that_are_no_unicode_survive(backbone: Backbone, tmp_path: Path) -> None:
    """Folder names on Linux are bytes; Python gives what is no UTF-8 as lone surrogates."""
    model = RememberingTransformer.from_backbone(backbone, **FAST)
    model.learn(make_task(0, ("caf\udce9", "b")))
    model.save(tmp_path)
    assert RememberingTransformer.load(tmp_path).classes == model.classes


def test_a_folder_called_bundled_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundled").mkdir()
    monkeypatch.chdir(tmp_path)
    model = RememberingTransformer.from_backbone("bundled", **FAST)
    model.learn(make_task(0))
    model.save("model")
    assert read_manifest(Path("model")).backbone.name == "bundled"
    RememberingTransformer.load("model")


def test_every_flipped_byte_and_missing_file_is_named(folder: Path) -> None:
    for name, data in snapshot(folder).items():
        if name == "manifest.json":
            continue
        path = folder / name
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(RememberingError, match=f"{path.name}.*SHA-256"):
            RememberingTransformer.load(folder)
        path.unlink()
        with pytest.raises(RememberingError, match=f"{path.name} cannot be read"):
            RememberingTransformer.load(folder)
        path.write_bytes(data)
    RememberingTransformer.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 4}, "has version 4.*update the program"),
        ({"version": 0}, "has version 0"),
        ({"version": "1"}, "version = '1' must be of type int"),
        ({"format": "other"}, "format = 'other'"),
        ({"surprise": 1}, "unknown setting 'surprise'"),
        ({"tasks": 3}, "tasks = '3' must be"),
        ({"next_number": float("nan")}, "next_number"),
        ({"settings": {"rank": 10**9, "lr": "fast"}}, "settings.lr = 'fast'"),
        ({"settings": {"rank": -1}}, "rank = -1"),
        ({"adapters": {}}, "sends task 'task 0' to adapter"),
        ({"adapters": {"x": {"folder": "a", "head": "b"}}}, "adapter numbers .* cannot be"),
        ({"next_number": 0}, "the task numbers .* cannot be"),
        ({"next_number": 10**30}, "next_number = 1000.* cannot be"),
    ],
)
def test_a_wrong_manifest_is_refused(change: dict[str, Any], message: str, folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    before = snapshot(folder)
    with pytest.raises(RememberingError, match=message):
        RememberingTransformer.load(folder)
    assert snapshot(folder) == before


def test_files_outside_the_folder_are_not_read(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["tasks"][0]["expert"] = "../../etc/passwd"
    path.write_text(json.dumps(manifest))
    with pytest.raises(RememberingError, match="outside the folder"):
        RememberingTransformer.load(folder)


def test_no_model_there(tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match="holds no model"):
        RememberingTransformer.load(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(RememberingError, match="is damaged"):
        RememberingTransformer.load(tmp_path)


def test_another_backbone_is_refused(folder: Path, checkpoints: dict[str, Path]) -> None:
    with pytest.raises(RememberingError, match="was learned on another backbone"):
        RememberingTransformer.load(folder, checkpoints["vit-classifier"])


def test_what_is_intact_can_be_loaded(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 3)
    model.save(tmp_path)
    assert store.verify(tmp_path) == []
    broken = next((tmp_path / "heads").glob("0001-*"))
    broken.write_bytes(broken.read_bytes()[:-1])
    assert [str(broken) in problem for problem in store.verify(tmp_path)] == [True]
    with pytest.raises(RememberingError, match="SHA-256"):
        RememberingTransformer.load(tmp_path)
    rest = RememberingTransformer.load(tmp_path, intact_only=True)
    assert [record.number for record in rest.tasks] == [0, 2]
    images = make_task(2).images
    wanted = model.answer(images, torch.full((12,), 2))
    columns = [model.classes.index(label) for label in rest.classes]
    assert torch.equal(rest.answer(images, torch.full((12,), 2)), wanted[:, columns])


def test_a_reader_meets_a_writer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the state that a reader has begun with are removed while it reads."""
    model = RememberingTransformer.load(folder)
    model.learn(make_task(5, ("x", "y")))
    real = store._assemble

    def late(*arguments: Any) -> RememberingTransformer:
        monkeypatch.setattr(store, "_assemble", real)
        model.save(folder)  # absorbs an adapter, so files go away
        return real(*arguments)

    monkeypatch.setattr(store, "_assemble", late)
    assert len(RememberingTransformer.load(folder).tasks) == 4


def test_what_another_saved_meanwhile_is_not_dropped(folder: Path, tmp_path: Path) -> None:
    one, two = (RememberingTransformer.load(folder) for _ in range(2))
    one.learn(make_task(7, ("x", "y")))
    one.save(folder)
    one.learn(make_task(8, ("v", "w")))
    one.save(folder)
    two.learn(make_task(9, ("p", "q")))
    with pytest.raises(RememberingError, match="another model was saved"):
        two.save(folder)
    two.save(tmp_path / "elsewhere")
    assert [t.name for t in RememberingTransformer.load(folder).tasks][-2:] == ["task 7", "task 8"]
    assert RememberingTransformer.load(tmp_path / "elsewhere").tasks[-1].name == "task 9"


def test_saving_over_other_things_is_refused(backbone: Backbone, tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(RememberingError, match="holds no model"):
        learned(backbone, 1).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]
    with pytest.raises(RememberingError, match="is a file"):
        learned(backbone, 1).save(tmp_path / "holiday.jpg")


def test_an_unwritable_folder_is_named(backbone: Backbone) -> None:
    with pytest.raises(RememberingError, match="cannot be written"):
        learned(backbone, 1).save("/proc/nothing/model")
