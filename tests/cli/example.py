"""Helpers of the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from remembering.cli import main

FAST = ["--backbone", "bundled", "--adapters", "task", "--epochs", "1", "--rank", "1"]
FAST += ["--classifier.kind", "head", "--router.kind", "subspace"]
"""Options that train an adapter for every task in a moment."""


def class_folder(
    folder: Path, classes: tuple[str, ...] = ("cat", "dog"), seed: int = 0, per_class: int = 3
) -> Path:
    """Write random images into a folder of class folders, and return it."""
    rng = np.random.default_rng(seed)
    for label in classes:
        (folder / label).mkdir(parents=True)
        for i in range(per_class):
            array = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(array).save(folder / label / f"{i}.png")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files in a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def fails(arguments: list[object], capsys: pytest.CaptureFixture[str], *words: str) -> None:
    """Check that a command fails with one line on standard error that contains some words."""
    assert main([str(argument) for argument in arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1, "more than one line"
    for word in words:
        assert word in error
