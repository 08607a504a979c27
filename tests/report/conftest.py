"""Run folders on disk, made from one example."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from remembering.experiments.result import RunResult

from . import example


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run folder of this name; its parent contains all of them."""

    def write(name: str, *results: RunResult) -> Path:
        return example.write_run(tmp_path / "runs" / name, *results)

    return write
