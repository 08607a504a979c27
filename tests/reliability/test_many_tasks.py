"""Many tasks: what is new is written, what is used is read, and a limit changes no answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from support import learned, make_task, random_adapter, some_tokens, tensors

from remembering.adapters import lora as adapters
from remembering.adapters.bank import AdapterBank
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.errors import RememberingError
from remembering.model import RememberingTransformer
from remembering.runtime.files import write_atomic
from remembering.storage import artifacts as parts
from remembering.storage.verify import verify

TASKS = 6


@pytest.fixture(scope="module")
def model(backbone: Backbone) -> RememberingTransformer:
    return learned(backbone, TASKS)


@pytest.fixture
def folder(model: RememberingTransformer, tmp_path: Path) -> Path:
    model.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of adapters that are read, as they are."""
    read: list[Path] = []
    real = adapters.unpack_peft

    def counted(files: dict[str, bytes], folder: Path, backbone: Backbone) -> Adapter:
        read.append(folder)
        return real(files, folder, backbone)

    monkeypatch.setattr(parts, "unpack_peft", counted)
    return read


def everything() -> torch.Tensor:
    return torch.cat([make_task(number).images for number in range(TASKS)])


def mixed() -> torch.Tensor:
    return torch.arange(12 * TASKS) % TASKS


def test_loading_reads_no_adapter_until_it_is_asked(folder: Path, reads: list[Path]) -> None:
    again = RememberingTransformer.load(folder)
    assert again.adapters.bytes == 0
    assert reads == []
    again.answer(make_task(0).images, torch.full((12,), 2))
    again.answer(make_task(0).images, torch.full((12,), 2))
    assert [path.name[:4] for path in reads] == ["0002"]


@pytest.mark.parametrize("adapters_kept", [0, 1, 2, TASKS])
def test_a_limit_changes_no_bit(
    adapters_kept: int, model: RememberingTransformer, folder: Path, reads: list[Path]
) -> None:
    one = model.adapters[0].a.nbytes + model.adapters[0].b.nbytes
    small = RememberingTransformer.load(folder, cache_bytes=adapters_kept * one)
    images = everything()
    for _ in range(2):
        assert torch.equal(small.answer(images, mixed()), model.answer(images, mixed()))
        assert torch.equal(small.predict(images).probabilities, model.predict(images).probabilities)
        assert small.adapters.bytes <= adapters_kept * one
    if adapters_kept == TASKS:
        assert len(reads) == TASKS
    else:
        assert len(reads) > TASKS


def test_the_adapter_not_used_for_longest_makes_room(
    model: RememberingTransformer, folder: Path, reads: list[Path]
) -> None:
    one = model.adapters[0].a.nbytes + model.adapters[0].b.nbytes
    bank = RememberingTransformer.load(folder, cache_bytes=2 * one).adapters
    for number in (0, 1, 0, 2, 0, 1):  # 2 puts 1 out, 1 puts 2 out; 0 stays
        assert torch.equal(bank[number].a, model.adapters[number].a)
    assert [int(path.name[:4]) for path in reads] == [0, 1, 2, 1]


def test_what_is_not_saved_is_never_dropped(backbone: Backbone) -> None:
    bank = AdapterBank(memory=0)
    for number in range(3):
        bank[number] = random_adapter(backbone, number)
    wanted = bank[1]
    tokens = some_tokens(backbone, 2)
    backbone.run(tokens, adapters=bank.mixed(torch.tensor([0, 2])))
    assert bank[1] is wanted
    bank.stored(1, lambda: random_adapter(backbone, 1))
    assert bank[1] is not wanted
    assert torch.equal(bank[1].a, wanted.a)
    assert list(bank) == [0, 1, 2]


def test_a_negative_limit_is_refused(folder: Path) -> None:
    with pytest.raises(RememberingError, match="-1 bytes"):
        RememberingTransformer.load(folder, cache_bytes=-1)


@pytest.mark.parametrize("changes", [{}, {"capacity": 3, "memory": 4}])
def test_a_limited_model_goes_on_learning(
    changes: dict[str, int], backbone: Backbone, tmp_path: Path
) -> None:
    """Also by fusion, which trains from an adapter that a prediction has read."""
    free = learned(backbone, 3, **changes)
    free.save(tmp_path / "one")
    small = RememberingTransformer.load(tmp_path / "one", cache_bytes=0)
    small.predict(make_task(1).images)
    for number in (3, 4):
        for each in (free, small):
            each.learn(make_task(number, (f"a{number}", f"b{number}")))
        small.save(tmp_path / "one")
        assert small.adapters.bytes == 0
    small.save(tmp_path / "two")
    wanted = tensors(free)
    for each in (small, *(RememberingTransformer.load(tmp_path / f) for f in ("one", "two"))):
        found = tensors(each)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_saving_elsewhere_copies_the_files_as_they_are(folder: Path, tmp_path: Path) -> None:
    """Also if the backbone is called otherwise now, which is written in each adapter."""
    again = RememberingTransformer.load(folder)
    again.backbone.name = "elsewhere"
    again.save(tmp_path / "copy")
    files = {path.relative_to(folder) for path in folder.rglob("*.*") if path.is_file()}
    assert len(files) == 1 + 4 * TASKS
    for name in files - {Path("manifest.json")}:
        assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()


def test_a_save_writes_what_is_new_and_packs_nothing_else(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[Path]
) -> None:
    learned(backbone, 3).save(tmp_path)
    model = RememberingTransformer.load(tmp_path)
    model.learn(make_task(3, ("x", "y")))
    written: list[str] = []
    packed: list[str] = []

    def noted(path: Path, data: bytes) -> None:
        written.append(path.relative_to(tmp_path).parts[0])
        write_atomic(path, data)

    def counted(kind: str) -> None:
        real = getattr(store, kind)
        monkeypatch.setattr(store, kind, lambda *a: packed.append(kind) or real(*a))

    monkeypatch.setattr(store, "write_atomic", noted)
    for kind in ("to_peft", "pack_head", "pack_expert"):
        counted(kind)
    model.save(tmp_path)
    assert written == ["adapters", "adapters", "heads", "routers", "manifest.json"]
    assert packed == ["to_peft", "pack_head", "pack_expert"]
    model.save(tmp_path)
    assert written[5:] == ["manifest.json"]
    assert len(packed) == 3
    assert reads == []


def test_a_file_lost_from_the_folder_is_written_again(folder: Path) -> None:
    again = RememberingTransformer.load(folder)
    lost = next((folder / "adapters").glob("0001-*/adapter_config.json"))
    lost.unlink()
    again.save(folder)
    assert verify(folder) == []


def test_a_reader_goes_on_after_its_files_are_removed(
    model: RememberingTransformer, folder: Path
) -> None:
    reader = RememberingTransformer.load(folder, cache_bytes=0)
    writer = RememberingTransformer.load(folder)
    for number in range(TASKS - 1):
        writer.forget(f"task {number}")
    writer.save(folder)
    assert len(list((folder / "adapters").iterdir())) == 1
    images = everything()
    assert torch.equal(reader.predict(images).probabilities, model.predict(images).probabilities)


@pytest.mark.parametrize("change", ["flipped", "cut"])
def test_a_file_that_changes_under_a_reader_is_an_error_not_an_answer(
    change: str, folder: Path
) -> None:
    reader = RememberingTransformer.load(folder)
    path = next((folder / "adapters").glob("0001-*/adapter_model.safetensors"))
    if change == "cut":
        os.truncate(path, 100)
    else:
        with path.open("r+b") as file:  # in place: the same file, which is mapped
            file.seek(-1, os.SEEK_END)
            file.write(b"\x7f")
    reader.answer(make_task(0).images, torch.zeros(12, dtype=torch.long))
    with pytest.raises(RememberingError, match="has changed since the model was loaded"):
        reader.answer(make_task(0).images, torch.ones(12, dtype=torch.long))


def test_leftovers_of_a_killed_writer_are_removed(folder: Path) -> None:
    again = RememberingTransformer.load(folder)
    again.learn(make_task(9, ("x", "y")))
    again.save(folder)
    stem = next((folder / "adapters").glob("0006-*"))
    (stem / "adapter_model.safetensors").unlink()
    (stem / ".adapter_model.safetensors.abc.unfinished").write_bytes(b"half")
    (folder / "heads" / "0099-0123456789ab.safetensors").write_bytes(b"of a state never reached")
    (folder / "adapters" / "0099-0123456789ab").mkdir()
    (folder / "adapters" / "0099-0123456789ab" / "adapter_config.json").write_bytes(b"{}")
    again.save(folder)
    assert verify(folder) == []
    assert not list(folder.rglob("*.unfinished"))
    assert not list(folder.rglob("0099-*"))


def test_many_files_need_no_descriptors(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    again = RememberingTransformer.load(folder)
    again.predict(everything())
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
