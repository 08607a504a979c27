"""Progress bars on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from remembering.runtime.bars import ProgressBars

pytestmark = pytest.mark.unit


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
