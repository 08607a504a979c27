"""Shares of tasks on disk: saved, read on demand, verified and validated."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from support import FAST, TWO_LEVEL, learned
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.errors import StorageError
from remembering.model import RememberingTransformer
from remembering.routing.share import Share
from remembering.runtime.files import sha256
from remembering.state import ReplayMemory
from remembering.storage import artifacts
from remembering.storage.artifacts import StoredShare
from remembering.storage.manifest import MANIFEST, read_manifest
from remembering.storage.verify import verify

SHARED = {**TWO_LEVEL, "adapters": "first"}


@pytest.fixture(scope="module")
def saved(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shares") / "model"
    learned(backbone, 3, **SHARED).save(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def share_file(folder: Path, task: int = 1) -> Path:
    path = read_manifest(folder).tasks[task].share
    assert path is not None
    return folder / path


def same(a: Share, b: Share) -> bool:
    return a.parts.keys() == b.parts.keys() and all(
        torch.equal(tensor, b.parts[name][key])
        for name, part in a.parts.items()
        for key, tensor in part.items()
    )


def test_saving_and_loading_keeps_shares(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 3, **SHARED)
    before = dict(model.state.shares)
    model.save(tmp_path / "model")
    loaded = RememberingTransformer.load(tmp_path / "model")
    for number, share in before.items():
        assert same(share, model.state.shares[number])
        assert same(share, loaded.state.shares[number])
    assert model.footprint() == loaded.footprint()
    loaded.forget("task 1")
    model.forget("task 1")
    loaded.save(tmp_path / "model")
    model.save(tmp_path / "other")
    names = [
        sorted(p.name for p in (tmp_path / f / "shares").iterdir()) for f in ("model", "other")
    ]
    assert len(names[1]) == 2
    assert set(names[1]) < set(names[0]), "the previous state keeps its files"


def test_shares_are_not_kept_in_memory(
    backbone: Backbone, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loaded or saved model reads them only to forget and to add images."""
    model = learned(backbone, 2, **SHARED)
    model.save(folder.with_name("new"))
    for each in (model, RememberingTransformer.load(folder)):
        for share in each.state.shares.values():
            assert isinstance(share.source, StoredShare)
            held = [v for v in vars(share.source).values() if isinstance(v, (Tensor, bytes))]
            assert held == []
    loaded, reads = RememberingTransformer.load(folder), []
    decode = artifacts.decode_share

    def counted(data: bytes, path: Path) -> object:
        reads.append(path)
        return decode(data, path)

    monkeypatch.setattr(artifacts, "decode_share", counted)
    loaded.predict(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))
    loaded.save(folder)
    assert reads == []
    loaded.forget("task 1")
    assert reads == [share_file(folder)]


def test_a_model_without_shared_statistics_has_no_shares(
    backbone: Backbone, tmp_path: Path
) -> None:
    model = learned(backbone, 2, **FAST)
    model.save(tmp_path)
    assert not model.state.shares
    assert not (tmp_path / "shares").exists()


def test_a_damaged_share_is_reported(folder: Path) -> None:
    file = share_file(folder)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert any(file.name in problem for problem in verify(folder))
    with pytest.raises(StorageError, match=file.name):
        RememberingTransformer.load(folder)


def test_without_its_damaged_share_a_task_remains(folder: Path) -> None:
    share_file(folder).unlink()
    model = RememberingTransformer.load(folder, intact_only=True)
    assert [task.name for task in model.tasks] == ["task 0", "task 1", "task 2"]
    assert set(model.state.shares) == {0, 2}
    assert not model.with_state(model.state).forget("task 1").exact
    assert model.forget("task 2").exact


Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
HOSTILE: dict[str, tuple[Change, str]] = {
    "nothing": (lambda t: {"x": torch.zeros(1)}, "scatter of a router or a classifier"),
    "another part": (lambda t: {**t, "other.spread": torch.ones(3)}, "scatter of a router"),
    "a missing tensor": (lambda t: {k: v for k, v in t.items() if "spread" not in k}, "instead of"),
    "a type": (lambda t: {**t, "router.spread": t["router.spread"].double()}, "router|spread is"),
    "a shape": (
        lambda t: {**t, "router.correlation": t["router.correlation"][1:]},
        "correlation is",
    ),
    "a scalar": (lambda t: {**t, "router.spread": torch.tensor(1.0)}, "spread is"),
    "NaN": (lambda t: {**t, "router.spread": t["router.spread"] * torch.nan}, "NaN"),
    "a negative spread": (lambda t: {**t, "router.spread": -t["router.spread"]}, "deviation"),
    "a correlation": (lambda t: {**t, "router.correlation": t["router.correlation"] + 9}, "-1 and"),
    "no classifier": (
        lambda t: {k: v for k, v in t.items() if k.startswith("router")},
        "instead of",
    ),
    "too few features": (
        lambda t: {**t, "router.spread": torch.ones(2), "router.correlation": torch.ones(1).half()},
        "instead of",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_content_is_reported(folder: Path, case: str) -> None:
    """The manifest vouches for the file, but it is not a share of this model."""
    change, problem = HOSTILE[case]
    file = share_file(folder)
    data = save_tensors(change(load_tensors(file.read_bytes())))
    old, new = sha256(file.read_bytes()), sha256(data)
    size = file.stat().st_size
    file.unlink()
    file.with_name(file.name.replace(old[:12], new[:12])).write_bytes(data)
    manifest = (folder / MANIFEST).read_text()
    entry = f'"sha256": "{old}", "bytes": {size}'
    assert entry in manifest
    manifest = manifest.replace(entry, f'"sha256": "{new}", "bytes": {len(data)}')
    (folder / MANIFEST).write_text(manifest.replace(old[:12], new[:12]))
    with pytest.raises(StorageError, match=problem):
        RememberingTransformer.load(folder)


def test_equal_replay_memories_are_equal_files() -> None:
    memory = ReplayMemory(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), ("a", "b"), held_out=1)
    assert len({artifacts.encode_memory(memory) for _ in range(20)}) == 1
    decoded = artifacts.decode_memory(artifacts.encode_memory(memory), Path("memory"))
    assert torch.equal(decoded.images, memory.images)
    assert (decoded.labels, decoded.held_out) == (memory.labels, 1)
