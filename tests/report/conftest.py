"""Results in memory and run directories on disk, made from one example."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .example import make_results


@pytest.fixture
def results() -> dict[str, Any]:
    return make_results()


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run directory with results.json and config.toml."""

    def write(name: str, results: dict[str, Any], config: str = "rank = 1\n") -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
        (folder / "config.toml").write_text(config, encoding="utf-8")
        return folder

    return write
