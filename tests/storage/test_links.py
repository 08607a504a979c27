"""Links and special files in a model folder: refused, reported, and nothing outside changes."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fuzz import described
from support import learned, make_task

from remembering.backbones.backbone import Backbone
from remembering.errors import StorageError
from remembering.learning.checkpoint import NAME, Checkpoint
from remembering.model import RememberingTransformer
from remembering.storage.verify import verify

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def saved(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    model = learned(backbone, 1, capacity=1, memory=4)
    model.save(folder)
    model.learn(make_task(1, ("x", "y")))
    model.save(folder)  # now there is a previous state
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A tree beside the model folder that must not change: content, names, modes or times."""
    tree = tmp_path / "documents"
    (tree / "0000-0123456789ab").mkdir(parents=True)
    for name in (
        "letter.txt",
        ".manifest.json.0123abcd.unfinished",
        "0000-0123456789ab.safetensors",
        "0000-0123456789ab/adapter_config.json",
        "0000-0123456789ab/adapter_model.safetensors",
    ):
        (tree / name).write_text(f"precious: {name}")
    before = described(tree)
    yield tree
    assert described(tree) == before


def forget(folder: Path) -> None:
    model = RememberingTransformer.load(folder)
    model.forget("task 0")
    model.save(folder)


def learn_with_checkpoint(folder: Path) -> None:
    model = RememberingTransformer.load(folder)
    checkpoint = Checkpoint(folder / NAME, steps=1)
    model.learn(make_task(2, ("p", "q")), checkpoint=checkpoint)
    model.save(folder)
    checkpoint.remove()


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    """Put something else in the place of a file or directory."""
    if path.is_dir():
        path.rename(path.with_name("moved away"))
        shutil.rmtree(path.with_name("moved away"))
    else:
        path.unlink(missing_ok=True)
    make(path)


ENTRIES = {
    "manifest": "manifest.json",
    "previous manifest": "manifest.previous.json",
    "lock": ".lock",
    "directory": "memory",
    "empty directory": "heads",
    "artifact directory": "adapters/0001-*",
    "artifact": "routers/0001-*",
    "file of an adapter": "adapters/0001-*/adapter_model.safetensors",
}


def entry(folder: Path, name: str) -> Path:
    pattern = ENTRIES[name]
    return next(folder.glob(pattern)) if "*" in pattern else folder / pattern


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("change", [forget, learn_with_checkpoint])
def test_symbolic_links_are_refused(
    name: str, change: Callable[[Path], None], folder: Path, canary: Path
) -> None:
    path = entry(folder, name)
    target = canary if path.is_dir() else canary / "letter.txt"
    replaced(path, lambda path: path.symlink_to(target))
    with pytest.raises(StorageError, match=rf"{path.name} is a symbolic link"):
        change(folder)
    assert any(f"{path} is a symbolic link" in problem for problem in problems(folder))


@pytest.mark.parametrize("name", [n for n in ENTRIES if "directory" not in n])
def test_hard_links_are_refused(name: str, folder: Path, canary: Path) -> None:
    path = entry(folder, name)
    data = path.read_bytes() if path.exists() else b""
    linked = folder.parent / "linked"
    linked.write_bytes(data)
    before = linked.stat().st_mtime_ns
    replaced(path, lambda path: os.link(linked, path))
    with pytest.raises(StorageError, match=rf"{path.name} is a hard link"):
        forget(folder)
    assert (linked.read_bytes(), linked.stat().st_mtime_ns) == (data, before)
    assert any(f"{path} is a hard link" in problem for problem in problems(folder))


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    """Create a node without a device behind it."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    except OSError:
        pytest.skip("device nodes cannot be created here")


def unix_socket(path: Path) -> None:
    short = Path(os.path.relpath(path))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(short))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        (name, make)
        for make in (fifo, device, unix_socket, Path.mkdir)
        for name in ENTRIES
        if name != "artifact directory" and (make is not Path.mkdir or "directory" not in name)
    ],
)
def test_special_files_neither_block_nor_are_read(
    name: str, make: Callable[[Path], object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = entry(folder, name)
    monkeypatch.chdir(path.parent)  # the names of sockets are short
    replaced(path, make)
    kinds = {fifo: "FIFO", device: "device", unix_socket: "socket", Path.mkdir: "directory"}
    kind = f"a {kinds[make]}"
    with pytest.raises(StorageError, match=rf"{path.name} is {kind}"):
        forget(folder)
    assert any(f"{path} is {kind}" in problem for problem in problems(folder))


@pytest.mark.parametrize("make", [fifo, device, "link"])
def test_a_checkpoint_that_is_no_file_is_ignored(
    make: Callable[[Path], None] | str, folder: Path, canary: Path
) -> None:
    if callable(make):
        make(folder / NAME)
    else:
        (folder / NAME).symlink_to(canary / "letter.txt")
    model = RememberingTransformer.load(folder)
    checkpoint = Checkpoint(folder / NAME, steps=1)
    model.learn(make_task(2, ("p", "q")), checkpoint=checkpoint)
    assert (folder / NAME).is_file()
    assert not (folder / NAME).is_symlink()


def problems(folder: Path) -> list[str]:
    try:
        return verify(folder)
    except StorageError as error:  # of the manifest itself
        return [str(error)]


def test_clean_up_leaves_what_it_did_not_write(folder: Path, canary: Path) -> None:
    kept = [
        folder / "notes.txt",
        folder / "memory" / "holiday.jpg",
        folder / "adapters" / "mine" / "adapter_config.json",
        folder / "adapters" / "0099-0123456789ab" / "notes.txt",
        folder / "heads" / "0099-0123456789ab",  # heads are files
        folder / ".unfinished",
        folder / "draft.unfinished",
    ]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    links = [
        folder / "memory" / "0099-0123456789ab.safetensors",
        folder / "adapters" / "0098-0123456789ab",
        folder / ".manifest.json.0123abcd.unfinished",
    ]
    for link in links:
        link.symlink_to(canary)
    for _ in range(2):
        model = RememberingTransformer.load(folder)
        model.forget(model.tasks[0].name)
        model.save(folder)
    assert all(path.read_text() == "mine" for path in kept)
    assert all(link.is_symlink() for link in links)
    found = verify(folder)
    for path in (kept[0], kept[1], kept[2].parent, *kept[3:], *links):
        assert any(problem.startswith(f"{path} ") for problem in found), path
    assert len(found) == len(kept) + len(links)


def test_names_in_messages_are_printable(folder: Path) -> None:
    (folder / "a\x1b[31m\nb").touch()
    assert verify(folder) == [f"{folder}/a\\x1b[31m\\x0ab does not belong to a model; remove it"]


def test_the_folder_itself_may_be_a_link(folder: Path) -> None:
    link = folder.with_name("latest")
    link.symlink_to(folder)
    forget(link)
    assert link.is_symlink()
    assert len(RememberingTransformer.load(folder).tasks) == 1
    assert verify(link) == []
