"""Each file operation of everything that saves a model fails once, in four ways.

In the manner of SQLite's tests: the process ends, or the operation raises ENOSPC, EIO or
KeyboardInterrupt. Afterwards the folder holds the state before or after, and the operation can be
repeated. `make test` tries points at even distances; REMEMBERING_LONG=full tries all of them.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import forked, sized

from remembering.backbones.backbone import Backbone
from remembering.errors import RememberingError
from remembering.model import RememberingTransformer
from remembering.storage.manifest import REPLACED
from remembering.storage.verify import verify

from .storage_operations import CASES, Session, digest, fresh, make_model, target

pytestmark = pytest.mark.reliability
POINTS = sized(5, 20, None)
"""Points for each operation and kind of failure; None for all."""
CALLS = ("open", "write", "fsync", "rename", "unlink", "mkdir", "rmdir")
STEPS = ("observe", "flush")
EXITED = 77


def end_process() -> None:
    os._exit(EXITED)


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken_disk() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def counting(fail: Callable[[], None] | None = None, point: int = -1) -> Iterator[list[str]]:
    """Record file operations; `fail` is called instead of one of them."""
    calls: list[str] = []
    patch = pytest.MonkeyPatch()

    def wrap(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if fail is not None and len(calls) == point + 1:
                fail()
            return real(*arguments, **options)

        return wrapped

    for name in CALLS:
        patch.setattr(os, name, wrap(name))
    try:
        yield calls
    finally:
        patch.undo()


FAILURES = (end_process, no_space, broken_disk, interrupt)


@pytest.fixture(scope="module")
def template(
    backbone: Backbone, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Path]]:
    """Make each model once."""
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Backbone, "load", lambda *_, **__: backbone)  # the same for all, and fast
        yield cache(lambda name: make_model(name, backbone, folder / name))


@pytest.mark.parametrize("fail", FAILURES)
@pytest.mark.parametrize("name", CASES)
def test_a_failure_at_any_file_operation(
    name: str, fail: Callable[[], None], template: Callable[[str], Path], tmp_path: Path
) -> None:
    model, operation = CASES[name]
    session = fresh(template(model), tmp_path / "whole")
    before = digest(target(name, session.folder))
    with counting() as calls:
        operation(session)
    after = digest(target(name, session.folder))
    assert before != after
    count = len(calls)
    assert count > 20
    step = 1 if POINTS is None else max(1, math.ceil(count / POINTS))
    # Each kind of failure starts elsewhere, so that together they try more points.
    points, tried = range(step * FAILURES.index(fail) // len(FAILURES), count, step), 0
    for point in points:
        session = fresh(template(model), tmp_path / "cut")
        folder = target(name, session.folder)
        context = f"{calls[point]}, {point} of {count}"
        if fail is end_process:
            session = killed(operation, session, point)
        else:
            try:
                with counting(fail, point):
                    operation(session)
                assert digest(folder) == after, context  # a damaged checkpoint is ignored
            except (RememberingError, OSError, KeyboardInterrupt):
                tried += 1
        found = digest(folder)
        assert found in (before, after), context
        if fail is end_process and found == after:
            session = Session(RememberingTransformer.load(folder), session.folder, {*STEPS})
        operation(session)
        assert digest(folder) == after, context
        assert verify(folder) == [], context
        left = (".", "progress", REPLACED)
        assert not [p for p in folder.iterdir() if p.name.startswith(left)], context
    assert fail is end_process or tried > len(points) // 2


def killed(operation: Callable[[Session], None], session: Session, point: int) -> Session:
    """Run an operation in a process that ends at a point; return what a new process finds."""

    def run() -> None:
        with counting(end_process, point):
            operation(session)

    status, message = forked(run)
    assert status == EXITED, message
    return Session(RememberingTransformer.load(session.folder), session.folder)
