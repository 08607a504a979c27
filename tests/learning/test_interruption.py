"""An operation that fails at any line leaves the model as it was, or as it should be afterwards.

`sys.settrace` raises an exception at lines sampled evenly from those that an operation executes in
the library. The long version, `make reliability`, samples more lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from support import make_task, sized
from torch import Tensor

import remembering
from remembering.backbones.backbone import Backbone
from remembering.config import ClassifierSettings
from remembering.model import RememberingTransformer

PACKAGE = str(Path(remembering.__file__).parent)
POINTS = sized(27, 100, 100)
"""Lines per operation and exception."""
EVERY = sized(27, 10, 1)
"""After one failure in this many, the model is also saved, loaded and taught."""
PROBE = torch.cat([make_task(i).images for i in range(4)])
Operation = Callable[[RememberingTransformer, Path], object]


def _learn(model: RememberingTransformer, folder: Path) -> object:
    return model.learn(make_task(2, ("a2", "b2")))


def _forget(model: RememberingTransformer, folder: Path) -> object:
    return model.forget("task 0")


def _observe(model: RememberingTransformer, folder: Path) -> object:
    """Recognise one batch with refinement, collect another, and learn a complete one."""
    return model.observe(make_task(1, ("a1", "b1")).images, ["a1"] * 6 + ["b1"] * 6, refine=True)


def _add_class(model: RememberingTransformer, folder: Path) -> object:
    return model.add_class("task 1", "new", make_task(3).images)


def _remove_class(model: RememberingTransformer, folder: Path) -> object:
    return model.remove_class("task 1", "a1")


def _save(model: RememberingTransformer, folder: Path) -> object:
    if model.state.observed:
        model.flush(discard=True)
    return model.save(folder)


OPERATIONS: dict[str, Operation] = {
    "learn": _learn,
    "forget": _forget,
    "observe": _observe,
    "add_class": _add_class,
    "remove_class": _remove_class,
    "save": _save,
}


@contextmanager
def tracing(visit: Callable[[], None]) -> Iterator[None]:
    """Call `visit` before each line that the library executes."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            visit()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def raise_at(line: int, error: type[BaseException]) -> Callable[[], None]:
    """Return a function that raises at its n-th call."""
    calls = 0

    def visit() -> None:
        nonlocal calls
        calls += 1
        if calls == line:
            sys.settrace(None)
            raise error("injected")

    return visit


def count_lines(operation: Operation, model: RememberingTransformer, folder: Path) -> int:
    lines = 0

    def visit() -> None:
        nonlocal lines
        lines += 1

    with tracing(visit):
        operation(model, folder)
    return lines


@pytest.fixture(scope="module")
def trained(backbone: Backbone) -> RememberingTransformer:
    """Two tasks under a capacity of one, with a logit correction and a pending task."""
    classifier = ClassifierSettings(replay=8)
    model = RememberingTransformer.from_backbone(
        backbone, epochs=1, batch_size=12, capacity=1, memory=4, classifier=classifier
    )
    for number in range(2):
        model.learn(make_task(number, (f"a{number}", f"b{number}")))
    for _ in range(2):
        model.observe(make_task(3, ("x", "y")).images, ["x"] * 6 + ["y"] * 6)
    model.observe(make_task(0, ("a0", "b0")).images[:4], ["a0"] * 4)
    return model


def copy_of(model: RememberingTransformer) -> RememberingTransformer:
    """A model with the same state: states are immutable, so they can be shared."""
    return RememberingTransformer(model.backbone, state=model.state)


def answers(model: RememberingTransformer) -> tuple[tuple[str, ...], Tensor, Tensor]:
    prediction = model.predict(PROBE, false_alarm_rate=0.05)
    assert prediction.novelty is not None
    names = tuple(task.name for task in model.tasks)
    return names, prediction.probabilities, prediction.novelty


def same(one: Any, other: Any) -> bool:
    return one[0] == other[0] and all(
        torch.equal(a, b) for a, b in zip(one[1:], other[1:], strict=True)
    )


@pytest.mark.reliability
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_exception_at_any_line(
    name: str, error: type[BaseException], trained: RememberingTransformer, tmp_path: Path
) -> None:
    operation = OPERATIONS[name]
    before = answers(trained)
    done = copy_of(trained)
    lines = count_lines(operation, done, tmp_path / "counted")
    after = answers(done)
    points = sorted({1 + lines * i // POINTS for i in range(POINTS)})
    for i, line in enumerate(points):
        model, folder = copy_of(trained), tmp_path / str(line)
        try:
            with tracing(raise_at(line, error)):
                operation(model, folder)
        except (error, RuntimeError, remembering.RememberingError):
            pass
        found = answers(model)
        assert same(found, before) or same(found, after), f"line {line} of {lines}: other answers"
        if i % EVERY == EVERY // 2:
            _still_works(model, folder)


def _still_works(model: RememberingTransformer, folder: Path) -> None:
    """The model can be saved, loaded and taught."""
    model.flush(discard=True)
    model.save(folder)
    loaded = RememberingTransformer.load(folder)
    assert same(answers(loaded), answers(model))
    loaded.learn(make_task(2, ("p", "q"))) if len(loaded.tasks) < 3 else loaded.forget("task 1")
    loaded.save(folder)
    assert same(answers(RememberingTransformer.load(folder)), answers(loaded))


@pytest.mark.reliability
def test_an_interrupted_logit_correction_leaves_the_task_unlearned(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    from remembering.routing import class_gaussians

    classifier = ClassifierSettings(replay=8)
    model = RememberingTransformer.from_backbone(backbone, epochs=1, classifier=classifier)
    model.learn(make_task(0))
    before = answers(model)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(class_gaussians, "fit_logit_correction", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.learn(make_task(1, ("c", "d")))
    assert same(answers(model), before)
