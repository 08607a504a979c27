"""Saving and loading: the same bits, incremental, atomic, and never over somebody else's state."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import FAST, TWO_LEVEL, learned, make_task, tensors

from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings
from remembering.errors import RememberingError, StorageError
from remembering.model import RememberingTransformer
from remembering.runtime.files import SafeFolder
from remembering.storage import reader
from remembering.storage.layout import in_use
from remembering.storage.manifest import (
    MANIFEST,
    REPLACED,
    Manifest,
    parse_manifest,
    read_manifest,
)
from remembering.storage.verify import verify

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def saved(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    learned(backbone, 3, capacity=2, memory=4).save(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_same(one: RememberingTransformer, two: RememberingTransformer) -> None:
    before, after = tensors(one), tensors(two)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert one.tasks == two.tasks


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"capacity": 2, "memory": 4},
        {"first_layer": 1},
        {"router": RouterSettings()},
        {"router": RouterSettings(), "capacity": 1, "memory": 4},
        {"router": RouterSettings("autoencoder", epochs=1)},
        {"router": RouterSettings("autoencoder", epochs=1, hidden=4, tokens="flat")},
        {"router": RouterSettings("subspace", latent=3, layers=(0, 2))},
    ],
    ids=str,
)
def test_loads_bit_for_bit(changes: dict[str, Any], backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 3, **changes)
    model.save(tmp_path)
    again = RememberingTransformer.load(tmp_path)
    assert_same(model, again)
    assert again.settings == model.settings
    images = make_task(1).images
    assert torch.equal(again.predict(images).probabilities, model.predict(images).probabilities)
    assert verify(tmp_path) == []


def test_learns_on_as_if_never_saved(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2, capacity=2, memory=4)
    model.save(tmp_path)
    again = RememberingTransformer.load(tmp_path)
    for each in (model, again):
        each.learn(make_task(2, ("x", "y")))
    assert_same(model, again)


def test_the_footprint_is_what_the_files_hold(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2, **TWO_LEVEL)
    model.save(tmp_path)
    stored = [load_file(path) for path in tmp_path.rglob("*.safetensors")]
    found = model.footprint()
    assert found.bytes + found.forget_bytes == sum(t.nbytes for f in stored for t in f.values())
    assert found.bytes < 4 * found.parameters  # some have two bytes


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


def test_saving_without_a_change_writes_nothing(folder: Path) -> None:
    before = snapshot(folder)
    RememberingTransformer.load(folder).save(folder)
    assert snapshot(folder) == before


def test_absorbed_adapters_are_removed_one_save_later(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2, capacity=2, memory=4)
    model.save(tmp_path)
    model.learn(make_task(2, ("x", "y")))
    model.save(tmp_path)
    assert len(list((tmp_path / "adapters").iterdir())) == 3
    model.forget("task 2")
    model.save(tmp_path)
    current, previous = read_manifest(tmp_path), read_manifest(tmp_path, "manifest.previous.json")
    listed = {*current.files, *previous.files, "manifest.json", "manifest.previous.json"}
    assert set(snapshot(tmp_path)) == listed
    assert len(list((tmp_path / "adapters").iterdir())) == 2


def test_the_previous_state_can_be_loaded_and_saved(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2)
    model.save(tmp_path)
    with pytest.raises(StorageError, match="holds no previous state"):
        RememberingTransformer.load(tmp_path, previous=True)
    before = RememberingTransformer.load(tmp_path)
    model.forget("task 0")
    model.save(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"damaged")
    restored = RememberingTransformer.load(tmp_path, previous=True)
    assert_same(restored, before)
    restored.learn(make_task(2, ("x", "y")))
    restored.save(tmp_path)
    assert [task.name for task in RememberingTransformer.load(tmp_path).tasks] == [
        "task 0",
        "task 1",
        "task 2",
    ]
    assert verify(tmp_path) == []


@pytest.mark.parametrize("operation", ["write", "rename"])
def test_an_interrupted_save_keeps_the_previous_state(
    operation: str, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the new manifest is written, and after it."""
    model = learned(backbone, 0)
    for number in range(2):
        model.learn(make_task(number, (f"a{number}", f"b{number}")))
        model.save(tmp_path)
    real = getattr(SafeFolder, operation)

    def interrupted(folder: SafeFolder, name: str, *rest: Any) -> None:
        if name in (MANIFEST, REPLACED) and (tmp_path / REPLACED).exists():
            raise KeyboardInterrupt
        real(folder, name, *rest)

    monkeypatch.setattr(SafeFolder, operation, interrupted)
    model.learn(make_task(2, ("a2", "b2")))
    with pytest.raises(KeyboardInterrupt):
        model.save(tmp_path)
    monkeypatch.undo()
    done = operation == "rename"
    assert len(RememberingTransformer.load(tmp_path).tasks) == 2 + done
    assert len(RememberingTransformer.load(tmp_path, previous=True).tasks) == 1 + done
    assert verify(tmp_path) == []
    model.save(tmp_path)
    assert len(RememberingTransformer.load(tmp_path).tasks) == 3
    assert len(RememberingTransformer.load(tmp_path, previous=True).tasks) == 2
    assert not (tmp_path / REPLACED).exists()


def test_a_state_that_could_not_be_loaded_is_not_saved(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2)
    model.save(tmp_path)
    before = snapshot(tmp_path)
    model.learn(make_task(2, ("x", "y")))
    model.state.heads[2].weight[0, 0] = torch.nan
    with pytest.raises(StorageError, match=r"not saved.*heads/0002.*weight contains NaN"):
        model.save(tmp_path)
    assert snapshot(tmp_path).items() >= before.items()
    assert len(RememberingTransformer.load(tmp_path).tasks) == 2


def test_labels_that_are_not_unicode_survive(backbone: Backbone, tmp_path: Path) -> None:
    """Folder names on Linux are bytes; Python represents invalid UTF-8 by lone surrogates."""
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


def test_another_backbone_is_refused(folder: Path, checkpoints: dict[str, Path]) -> None:
    with pytest.raises(StorageError, match="was learned on another backbone"):
        RememberingTransformer.load(folder, backbone=checkpoints["vit-classifier"])


def test_a_reader_meets_a_writer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the state that a reader has begun with are removed while it reads."""
    model = RememberingTransformer.load(folder)
    real = reader._load_backbone

    def late(*arguments: Any) -> Backbone:
        monkeypatch.setattr(reader, "_load_backbone", real)
        for number in (5, 6):  # the second save removes what the first has replaced
            model.learn(make_task(number, (f"x{number}", f"y{number}")))
            model.save(folder)
        return real(*arguments)

    monkeypatch.setattr(reader, "_load_backbone", late)
    assert len(RememberingTransformer.load(folder).tasks) == 5


class TestGenerations:
    """A save replaces only states that it descends from."""

    def test_what_another_process_saved_is_not_lost(self, folder: Path, tmp_path: Path) -> None:
        one, two = (RememberingTransformer.load(folder) for _ in range(2))
        one.learn(make_task(7, ("x", "y")))
        one.save(folder)
        two.learn(make_task(9, ("p", "q")))
        with pytest.raises(StorageError, match=r"newer state \(generation 2\)"):
            two.save(folder)
        two.save(tmp_path / "elsewhere")
        with pytest.raises(StorageError, match="newer state"):
            two.save(folder)  # also on the way back
        assert RememberingTransformer.load(folder).tasks[-1].name == "task 7"
        assert RememberingTransformer.load(tmp_path / "elsewhere").tasks[-1].name == "task 9"
        two.save(folder, overwrite=True)
        assert RememberingTransformer.load(folder).tasks[-1].name == "task 9"

    def test_a_copied_folder_counts_for_itself(self, folder: Path, tmp_path: Path) -> None:
        shutil.copytree(folder, tmp_path / "copy")
        one, two = (RememberingTransformer.load(f) for f in (folder, tmp_path / "copy"))
        for model, number, place in ((one, 7, folder), (two, 9, tmp_path / "copy")):
            model.learn(make_task(number, ("x", "y")))
            model.save(place)
        with pytest.raises(StorageError, match="newer state"):
            one.save(tmp_path / "copy")

    def test_saving_elsewhere_and_back_is_allowed(self, folder: Path, tmp_path: Path) -> None:
        model = RememberingTransformer.load(folder)
        model.save(tmp_path / "elsewhere")
        model.learn(make_task(7, ("x", "y")))
        model.save(folder)
        model.save(tmp_path / "elsewhere")
        assert read_manifest(folder).generation == 3
        assert_same(*(RememberingTransformer.load(f) for f in (folder, tmp_path / "elsewhere")))

    def test_copies_of_a_model_object_do_not_share_saves(self, folder: Path) -> None:
        model = RememberingTransformer.load(folder)
        other = model.with_settings(model.settings)
        model.learn(make_task(7, ("x", "y")))
        model.save(folder)
        other.learn(make_task(8, ("p", "q")))
        with pytest.raises(StorageError, match="newer state"):
            other.save(folder)

    def test_an_unrelated_model_is_not_replaced(self, folder: Path, backbone: Backbone) -> None:
        before = snapshot(folder)
        other = learned(backbone, 1)
        with pytest.raises(StorageError, match=r"holds another model.*overwrite=True"):
            other.save(folder)
        assert snapshot(folder) == before
        other.save(folder, overwrite=True)
        assert_same(RememberingTransformer.load(folder), other)
        assert len(RememberingTransformer.load(folder, previous=True).tasks) == 3

    def test_a_damaged_manifest_is_only_overwritten_on_request(
        self, folder: Path, backbone: Backbone
    ) -> None:
        (folder / "manifest.json").write_bytes(b"{")
        other = learned(backbone, 1)
        with pytest.raises(StorageError, match="is damaged"):
            other.save(folder)
        other.save(folder, overwrite=True)
        assert_same(RememberingTransformer.load(folder), other)

    @pytest.mark.parametrize("learns", [False, True])
    def test_a_save_interrupted_after_the_rename_can_be_repeated(
        self, learns: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = RememberingTransformer.load(folder)
        model.learn(make_task(7, ("x", "y")))
        real = os.rename

        def interrupted(source: str, target: str, **options: int) -> None:
            real(source, target, **options)
            if target == "manifest.json":
                raise KeyboardInterrupt

        monkeypatch.setattr(os, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.save(folder)
        monkeypatch.setattr(os, "rename", real)
        assert read_manifest(folder).generation == 2
        if learns:
            model.learn(make_task(8, ("v", "w")))
        model.save(folder)
        assert_same(RememberingTransformer.load(folder), model)
        assert read_manifest(folder).generation == 2 + learns


def test_the_revision_of_the_backbone_is_recorded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = RememberingTransformer.load(folder)
    model.backbone.revision = "0" * 40  # type: ignore[assignment]
    model.save(folder)
    assert read_manifest(folder).backbone.revision == "0" * 40
    requested: list[object] = []
    real = Backbone.load

    def load(*arguments: Any, **options: Any) -> Backbone:
        requested.append(options.pop("revision", None))
        return real(*arguments)

    monkeypatch.setattr(Backbone, "load", load)
    RememberingTransformer.load(folder)
    assert requested == ["0" * 40]


class TestRefusals:
    def test_other_files(self, backbone: Backbone, tmp_path: Path) -> None:
        (tmp_path / "holiday.jpg").write_bytes(b"")
        for overwrite in (False, True):
            with pytest.raises(StorageError, match="holds no model"):
                learned(backbone, 1).save(tmp_path, overwrite=overwrite)
        assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]
        with pytest.raises(StorageError, match="is a file"):
            learned(backbone, 1).save(tmp_path / "holiday.jpg")

    def test_an_unwritable_folder(self, backbone: Backbone) -> None:
        with pytest.raises(StorageError, match="cannot be written"):
            learned(backbone, 1).save("/proc/nothing/model")

    def test_no_model(self, tmp_path: Path) -> None:
        for folder in (tmp_path, tmp_path / "missing"):
            with pytest.raises(StorageError, match="holds no model"):
                RememberingTransformer.load(folder)

    def test_observed_images(self, backbone: Backbone, tmp_path: Path) -> None:
        model = RememberingTransformer.from_backbone(backbone, epochs=1)
        model.observe(make_task(0).images, make_task(0).labels)
        with pytest.raises(RememberingError, match="12 observed images"):
            model.save(tmp_path)


def test_new_files_and_directories_follow_the_umask(backbone: Backbone, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        learned(backbone, 1, capacity=1, memory=4).save(tmp_path / "model")
    finally:
        os.umask(before)
    modes = {p.is_dir(): p.stat().st_mode & 0o777 for p in (tmp_path / "model").rglob("*")}
    assert modes == {True: 0o750, False: 0o640}


def dies_at(count: int) -> Callable[..., None]:
    """Return a `SafeFolder.write` that fails instead of writing for the n-th time."""
    written: list[str] = []
    real = SafeFolder.write

    def write(self: SafeFolder, name: str, data: bytes) -> None:
        if len(written) == count:
            raise OSError("no space left on device")
        written.append(name)
        real(self, name, data)

    return write


@pytest.mark.parametrize("allowed", range(5))
def test_an_interrupted_first_save_does_not_block_the_folder(
    allowed: int, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = learned(backbone, 1)  # two files of the adapter, head, expert, manifest
    with monkeypatch.context() as patch:
        patch.setattr(SafeFolder, "write", dies_at(allowed))
        with pytest.raises(OSError, match="no space"):
            model.save(tmp_path / "model")
    assert not in_use(tmp_path / "model")
    model.save(tmp_path / "model")
    assert len(RememberingTransformer.load(tmp_path / "model").tasks) == 1


def test_a_manifest_of_1000_tasks_is_written_quickly(folder: Path) -> None:
    """The limit is generous; the test catches quadratic behaviour."""
    content = json.loads((folder / "manifest.json").read_text())
    task, (number, adapter) = content["tasks"][0], next(iter(content["adapters"].items()))
    tasks, adapters, files = [], {}, {}
    for n in range(1000):
        names = {
            key: path.replace(f"/{int(owner):04d}-", f"/{n:04d}-")
            for key, path, owner in (
                ("expert", task["expert"], task["number"]),
                ("memory", task["memory"], task["number"]),
                ("folder", adapter["folder"], number),
                ("head", adapter["head"], number),
            )
        }
        tasks.append(
            task
            | {k: names[k] for k in ("expert", "memory")}
            | {"number": n, "name": str(n), "adapter": n}
        )
        adapters[str(n)] = {k: names[k] for k in ("folder", "head")}
        listed = [names["expert"], names["memory"], names["head"]]
        listed += [f"{names['folder']}/adapter_{x}" for x in ("config.json", "model.safetensors")]
        files |= {name: {"sha256": "0" * 64, "bytes": 1} for name in listed}
    content |= {
        "tasks": tasks,
        "adapters": adapters,
        "files": files,
        "next_number": 1000,
        "shared": None,
    }
    started = os.times().user
    manifest = parse_manifest(json.dumps(content).encode(), folder / "manifest.json")
    data = manifest.encode()
    assert os.times().user - started < 5
    assert isinstance(manifest, Manifest)
    assert parse_manifest(data, folder / "manifest.json") == manifest
