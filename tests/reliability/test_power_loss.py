"""A power loss at any moment of a recorded save leaves the state before or the state after.

The file operations of some operations are recorded. For each moment, folders are
built that a file system may present after a power loss: data of a file that was not synced is
dropped, and changes to a directory that were not synced happen or do not happen. After an
operation has returned, everything it did must be durable.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import sized

from remembering.backbones.backbone import Backbone
from remembering.model import RememberingTransformer

from .storage_operations import CASES, Session, digest, fresh, make_model, target

pytestmark = pytest.mark.reliability
RANDOM_STATES = sized(1, 8, 8)
"""Random choices of unsynced changes for each moment, besides none and all of them."""


@dataclass
class File:
    """A file: what programs see, and what is on the disk."""

    live: bytes = b""
    durable: bytes = b""


Change = dict[str, "File | Directory | None"]
"""New entries by name, None if removed; they become durable together."""


@dataclass
class Directory:
    """A directory: what programs see, what is on the disk, and the changes in between."""

    live: Change = field(default_factory=dict)
    durable: Change = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path) -> Directory:
        """Return a directory that is on the disk as it is."""
        entries: Change = {
            p.name: cls.of(p) if p.is_dir() else File(p.read_bytes(), p.read_bytes())
            for p in path.iterdir()
        }
        return cls(entries, dict(entries))

    def change(self, change: Change) -> None:
        self.pending.append(change)
        self.live |= change

    def sync(self) -> None:
        self.durable, self.pending = dict(self.live), []

    def found(self, rng: random.Random, share: float, path: str = "") -> Content:
        """Return what is on the disk, with a random share of the changes that are not synced."""
        entries = dict(self.durable)
        for change in self.pending:
            if rng.random() < share:
                entries |= change
        content: Content = {path: None}
        for name, entry in entries.items():
            if isinstance(entry, File):
                content[f"{path}/{name}"] = entry.durable
            elif entry is not None:
                content |= entry.found(rng, share, f"{path}/{name}")
        return content


Content = dict[str, bytes | None]
"""Files by path; None for directories."""


def build(content: Content, root: Path) -> Path:
    """Create files and directories."""
    for path, data in content.items():
        if data is None:
            Path(f"{root}{path}").mkdir(parents=True)
        else:
            Path(f"{root}{path}").write_bytes(data)
    return root


class Recorder:
    """Replays file operations below a root on a model of a disk."""

    def __init__(self, root: Path):
        self.root, self.disk = root, Directory.of(root)
        self.moments = 0

    def locate(self, path: str, directory: int | None) -> tuple[Directory, str] | None:
        if directory is not None:
            path = f"{os.readlink(f'/proc/self/fd/{directory}')}/{path}"  # noqa: PTH115
        found = Path(path)
        if not found.is_relative_to(self.root) or found == self.root:
            return None
        parent: Any = self.disk
        for part in found.relative_to(self.root).parts[:-1]:
            parent = parent.live[part]
        return parent, found.name

    def apply(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Apply an operation that has happened."""
        directory = options.get("dir_fd", options.get("src_dir_fd"))
        if name in ("write", "fsync"):
            path = os.readlink(f"/proc/self/fd/{arguments[0]}")  # noqa: PTH115
            if Path(path) == self.root:
                self.disk.sync()
                return
            place = self.locate(path, None)
        else:
            place = self.locate(str(arguments[0]), directory)
        if place is None:
            return
        parent, leaf = place
        entry = parent.live.get(leaf)
        if name == "open" and arguments[1] & os.O_CREAT and entry is None:
            parent.change({leaf: File()})
        elif name == "write" and isinstance(entry, File):
            entry.live += bytes(arguments[1])
        elif name == "fsync" and isinstance(entry, File):
            entry.durable = entry.live
        elif name == "fsync" and isinstance(entry, Directory):
            entry.sync()
        elif name == "mkdir":
            parent.change({leaf: Directory()})
        elif name in ("unlink", "rmdir"):
            parent.change({leaf: None})
        elif name == "rename":
            assert directory == options["dst_dir_fd"]
            parent.change({leaf: None, arguments[1]: entry})


@contextmanager
def recording(recorder: Recorder, at: Any) -> Iterator[None]:
    """Call `at` after each file operation."""
    patch = pytest.MonkeyPatch()

    def wrap(name: str) -> Any:
        real = getattr(os, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            result = real(*arguments, **options)
            if name == "write":
                arguments = (arguments[0], bytes(arguments[1])[:result])
            recorder.apply(name, arguments, options)
            if name != "open" or arguments[1] & os.O_CREAT:
                at()
            return result

        return wrapped

    for name in ("open", "write", "fsync", "rename", "unlink", "mkdir", "rmdir"):
        patch.setattr(os, name, wrap(name))
    try:
        yield
    finally:
        patch.undo()


@pytest.mark.parametrize(
    "name",
    ["separate learn", "consolidated forget", "consolidated undo", "consolidated save"],
)
def test_a_power_loss_at_any_moment(
    name: str, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backbone, "load", lambda *_, **__: backbone)
    model, operation = CASES[name]
    session = fresh(make_model(model, backbone, tmp_path / "template"), tmp_path / "disk")
    before = digest(target(name, session.folder))
    recorder, rng = Recorder(tmp_path / "disk"), random.Random(0)
    states: dict[tuple[tuple[str, bytes | None], ...], None] = {}

    def cut() -> None:
        """Note what may be found after a power loss at this moment."""
        recorder.moments += 1
        for share in (0.0, 1.0, *[0.5] * RANDOM_STATES):
            states[tuple(recorder.disk.found(rng, share).items())] = None

    with recording(recorder, cut):
        operation(session)
    after = digest(target(name, session.folder))
    assert recorder.moments > 10
    places = [
        build(dict(state), tmp_path / "states" / str(i)) / "model" for i, state in enumerate(states)
    ]
    found = [digest(target(name, place)) for place in places]
    assert {*found} == {before, after}
    end = build(recorder.disk.found(rng, 0), tmp_path / "end") / "model"
    assert digest(target(name, end)) == after
    for place, state in [*zip(places, found, strict=True)][:: max(1, len(places) // 10)]:
        if state == before:  # the operation can be repeated
            operation(Session(RememberingTransformer.load(place), place))
            assert digest(target(name, place)) == after
