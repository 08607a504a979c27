"""The notebooks run, and their stored outputs have the form of what they print now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from .pages import load_script

pytestmark = pytest.mark.integration


RUN = load_script("run_notebooks")


@pytest.mark.parametrize("path", RUN.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path) -> None:
    stored = list(_outputs(nbformat.read(path, as_version=4)))
    assert stored == list(_outputs(RUN.run(path))), "outputs differ; run make notebooks"


@pytest.mark.unit
@pytest.mark.parametrize("path", RUN.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_small(path: Path) -> None:
    assert path.stat().st_size < 50_000


def _outputs(notebook: Any) -> Iterator[tuple[str, ...]]:
    """Return the outputs of each cell, without numbers, names and sizes."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            outputs = [output.get("text") or output["data"] for output in cell.outputs]
            yield tuple("plot" if "image/png" in output else _masked(output) for output in outputs)


def _masked(output: Any) -> str:
    text = output if isinstance(output, str) else output["text/plain"]
    plain = re.sub(r"'[^']*'", "''", text).replace("not flagged", "flagged")
    return " ".join(re.sub(r"[\d.,]+", "#", plain).split())
