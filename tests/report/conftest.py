"""Run directories on disk, made from one example."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import example


@pytest.fixture
def results() -> dict[str, Any]:
    return example.make_results()


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run directory of this name; give it the folder's parent to report all of them."""
    return lambda name, *given, **named: example.write_run(
        tmp_path / "runs" / name, *given, **named
    )
