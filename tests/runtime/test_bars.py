"""Progress: bars on a terminal and in a notebook, an estimate elsewhere."""

from __future__ import annotations

import io
import sys
import types
from typing import Any

import pytest

from remembering.runtime import bars
from remembering.runtime.bars import ProgressBars
from remembering.runtime.progress import SILENT, Progress, as_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_progress_bar_leaves_piped_output_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would print standard output on the terminal of standard error."""
    terminal, pipe = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBars().track("predicting", 2) as step:
        print("answer")
        step(1)
    assert pipe.getvalue() == "answer\n"
    assert "predicting" in terminal.getvalue()
    assert "answer" not in terminal.getvalue()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that tests set."""
    now = [0.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: now[0])
    return now


class TestWithoutATerminal:
    def test_long_work_is_estimated_once(
        self, clock: list[float], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with ProgressBars().track("learning birds", 100) as step:
            for seconds in (100, 104, 106, 109, 112, 115):  # the first step is slow
                clock[0] = seconds
                step(5)
        assert capsys.readouterr() == ("", "learning birds: about 48 s left\n")

    def test_short_work_is_not(
        self, clock: list[float], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with ProgressBars().track("learning birds", 100) as step:
            for seconds in (1, 3, 5, 7, 90):
                clock[0] = seconds
                step(20)
        assert capsys.readouterr().err == ""

    def test_nested_work_and_work_with_its_own_estimate_are_not(
        self, clock: list[float], capsys: pytest.CaptureFixture[str]
    ) -> None:
        progress = ProgressBars()
        with progress.track("runs", 10) as step:
            with progress.track("learning birds", 100) as inner:
                for seconds in (1, 10, 20, 30, 40):
                    clock[0] = seconds
                    inner(5)
            for seconds in (50, 60, 70, 80, 90):
                clock[0] = seconds
                step(1, "about 3 min left")
        assert capsys.readouterr().err == ""


def test_bars_in_a_notebook_need_no_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def text(bars: Any) -> str:
        data: dict[str, str] = bars._repr_mimebundle_([], [])
        return data["text/html"]

    class Handle:
        def update(self, bars: Any) -> None:
            shown.append(text(bars))

    def display(bars: Any, *, display_id: bool) -> Handle:
        assert display_id
        shown.append(text(bars))
        return Handle()

    module = types.ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(bars, "REFRESH", 0)
    progress = ProgressBars()
    monkeypatch.setattr(progress._console, "is_jupyter", True)
    for name in ("encoding", "learning"):
        with progress.track(name, 10) as step:
            step(4)
            with progress.track("inner", 2) as inner:
                inner(1)
    assert len(shown) == 5, "one display, updated after each step"
    assert "encoding" in shown[1]
    assert "4/10" in shown[1]
    assert "inner" in shown[2]
    assert "learning" in shown[4]
    assert "encoding" not in shown[4]


def test_true_stands_for_bars() -> None:
    assert isinstance(as_progress(True), ProgressBars)
    assert as_progress(False) is SILENT
    own = Progress()
    assert as_progress(own) is own
