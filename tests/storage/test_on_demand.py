"""Adapters are read when they are used, and a save encodes only what is new."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support import learned, make_task, random_adapter, some_tokens, tensors

from remembering.adapters.bank import AdapterBank, AdapterCache
from remembering.adapters.lora import Adapter
from remembering.adapters.peft_format import unpack_peft
from remembering.backbones.backbone import Backbone
from remembering.errors import RememberingError
from remembering.model import RememberingTransformer
from remembering.runtime.files import SafeFolder
from remembering.storage import artifact_writer, artifacts

pytestmark = pytest.mark.unit
TASKS = 6
IMAGES = torch.cat([make_task(number).images for number in range(TASKS)])


@pytest.fixture(scope="module")
def model(backbone: Backbone) -> RememberingTransformer:
    return learned(backbone, TASKS)


@pytest.fixture(scope="module")
def saved(model: RememberingTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    model.save(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the adapters that are read, in order."""
    numbers: list[int] = []

    def counted(files: Mapping[str, bytes], folder: Path, backbone: Backbone) -> Adapter:
        numbers.append(int(folder.name[:4]))
        return unpack_peft(files, folder, backbone)

    monkeypatch.setattr(artifacts, "unpack_peft", counted)
    return numbers


def test_loading_reads_no_adapter(folder: Path, reads: list[int]) -> None:
    bank = RememberingTransformer.load(folder).state.adapters
    assert (bank.cache.bytes, reads) == (0, [])
    for number in (2, 2, 3):
        bank[number]
    assert reads == [2, 3]


@pytest.mark.parametrize("kept", [0, 1, 2, TASKS])
def test_a_limit_changes_no_bit(
    kept: int, model: RememberingTransformer, folder: Path, reads: list[int]
) -> None:
    one = model.state.adapters[0].nbytes
    small = RememberingTransformer.load(folder, cache_bytes=kept * one)
    for _ in range(2):
        expected = model.predict(IMAGES).probabilities
        assert torch.equal(small.predict(IMAGES).probabilities, expected)
        assert small.state.adapters.cache.bytes <= kept * one
    used = len({*model.predict(IMAGES).adapters.tolist()})
    assert used > 1
    assert len(reads) == used if kept == TASKS else len(reads) > used


def test_the_least_recently_used_adapter_is_dropped(
    model: RememberingTransformer, folder: Path, reads: list[int]
) -> None:
    one = model.state.adapters[0].nbytes
    bank = RememberingTransformer.load(folder, cache_bytes=2 * one).state.adapters
    for number in (0, 1, 0, 2, 0, 1):  # 2 replaces 1, 1 replaces 2; 0 stays
        assert torch.equal(bank[number].a, model.state.adapters[number].a)
    assert reads == [0, 1, 2, 1]


def test_what_is_not_saved_is_never_dropped(backbone: Backbone) -> None:
    bank = AdapterBank(cache=AdapterCache(0))
    for number in range(3):
        bank = bank.with_adapter(number, random_adapter(backbone, number))
    adapter = bank[1]
    tokens = some_tokens(backbone, 2)
    backbone.run(tokens, adapters=bank.mixed(torch.tensor([0, 2])))
    assert bank[1] is adapter
    stored = bank.with_adapter(1, lambda: random_adapter(backbone, 1))
    assert stored[1] is not adapter
    assert torch.equal(stored[1].a, adapter.a)
    assert list(stored) == [0, 1, 2]


def test_a_negative_limit_is_refused(folder: Path) -> None:
    with pytest.raises(RememberingError, match=r"^cache_bytes = -1 must be at least 0"):
        RememberingTransformer.load(folder, cache_bytes=-1)


@pytest.mark.parametrize("changes", [{}, {"capacity": 3, "memory": 4}])
def test_a_limited_model_learns_on(
    changes: dict[str, int], backbone: Backbone, tmp_path: Path
) -> None:
    """Also by fusion, which starts from an adapter that a prediction has read."""
    free = learned(backbone, 3, **changes)
    free.save(tmp_path / "one")
    small = RememberingTransformer.load(tmp_path / "one", cache_bytes=0)
    small.predict(make_task(1).images)
    for number in (3, 4):
        for each in (free, small):
            each.learn(make_task(number, (f"a{number}", f"b{number}")))
        small.save(tmp_path / "one")
        assert small.state.adapters.cache.bytes == 0
        assert not any(isinstance(e, Adapter) for e in small.state.adapters.entries.values())
    small.save(tmp_path / "two")
    expected = tensors(free)
    for each in (small, *(RememberingTransformer.load(tmp_path / f) for f in ("one", "two"))):
        found = tensors(each)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_saving_elsewhere_copies_the_files_as_they_are(folder: Path, tmp_path: Path) -> None:
    """Also if the backbone has another name now, which is part of PEFT's configuration."""
    again = RememberingTransformer.load(folder)
    again.backbone.name = "elsewhere"
    again.save(tmp_path / "copy")
    files = {path.relative_to(folder) for path in folder.rglob("*.*") if path.is_file()}
    assert len(files) == 1 + 4 * TASKS
    for name in files - {Path("manifest.json")}:
        assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()


def test_a_save_encodes_and_writes_only_what_is_new(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reads: list[int]
) -> None:
    model = RememberingTransformer.load(folder)
    model.learn(make_task(TASKS, ("x", "y")))
    written: list[str] = []
    encoded: list[str] = []
    real = SafeFolder.write

    def write(self: SafeFolder, name: str, data: bytes) -> None:
        written.append(name.split("/")[0])
        real(self, name, data)

    def counted(name: str) -> None:
        function = getattr(artifact_writer, name)
        monkeypatch.setattr(artifact_writer, name, lambda *a: encoded.append(name) or function(*a))

    monkeypatch.setattr(SafeFolder, "write", write)
    for name in ("to_peft", "encode_head", "encode_expert"):
        counted(name)
    reads.clear()
    model.save(folder)
    new = ["adapters", "adapters", "heads", "routers"]
    assert written == [*new, "manifest.replaced.json", "manifest.json"]
    assert encoded == ["to_peft", "encode_head", "encode_expert"]
    assert reads == [TASKS], "what was written is decoded once"
    model.save(folder)
    assert (len(written), len(encoded)) == (6, 3)


def test_a_loaded_model_needs_no_descriptors(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    again = RememberingTransformer.load(folder)
    again.predict(IMAGES)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
