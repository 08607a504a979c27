"""Figures beside Markdown files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from remembering.report.table import markdown_text

if TYPE_CHECKING:  # matplotlib is imported where a plot is drawn
    from remembering.report.figure import Plot


@dataclass(frozen=True)
class Figures:
    """Collects the figures of a Markdown file; they are written together with it.

    Attributes:
        folder: Folder of the figures.
        document: The Markdown file, which links to them.
        files: The content of each figure by path.
    """

    folder: Path
    document: Path
    files: dict[Path, bytes] = field(default_factory=dict)

    def add(self, plot: Plot, name: str) -> str:
        """Add a figure, and return the Markdown that shows it with its numbers as text.

        A name that another figure has gets a number.
        """
        content, number = plot.document().encode("utf-8"), 1
        path = self.folder / f"{name}.svg"
        while self.files.setdefault(path, content) != content:
            number += 1
            path = self.folder / f"{name}-{number}.svg"
        link = Path(os.path.relpath(path, self.document.parent)).as_posix()
        text = f"{plot.title}. {plot.numbers}" if plot.numbers else plot.title
        return f"![{markdown_text(text)}]({link})"
