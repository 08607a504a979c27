"""Heat maps: cells of one colour whose opacity is the value, for light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from remembering.report.figure import BLUE, GRID, HEAT, STYLE, WIDTH, canvas, text_width, wrap

ANNOTATED = 10
"""Up to this number of rows, cells contain their value."""
NAMED = 20
"""Up to this number of rows, all of them are named."""
_NAME = 90.0
"""Largest width of a name in points."""


def heatmap(
    title: str,
    settings: str,
    values: NDArray[np.float64],
    intensity: NDArray[np.float64],
    *,
    xlabel: str,
    ylabel: str,
    number: str = "{:.0f}",
    columns: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
) -> Figure:
    """Draw a square matrix.

    Args:
        title: Title of the figure.
        settings: What its numbers belong to.
        values: The numbers; NaN where there is none.
        intensity: How intense the colour of each cell is, 0 to 1.
        xlabel: What a column is.
        ylabel: What a row is.
        number: Format of the numbers in cells.
        columns: Names of the columns. If None, they are numbered from 1.
        rows: Names of the rows. If None, they are numbered from 1.
    """
    n, numbers = len(values), [str(i + 1) for i in range(len(values))]
    ticks = _ticks(n)
    size = 9.5 if n <= ANNOTATED else 8.0
    beside, below = (
        ["".join(wrap(names[i], _NAME, size, lines=1)) for i in ticks]  # a name may be blank
        for names in (rows or numbers, columns or numbers)
    )
    left = 28 + max(text_width(name, size) for name in beside)
    side = min(WIDTH - left - 10, 50.0 * n)
    longest = max(text_width(name, size) for name in below)
    turned = n <= NAMED and longest > 0.95 * side / n
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        fig, axes = canvas(
            title,
            settings,
            height=side,
            left=left,
            right=WIDTH - left - side,
            bottom=28 + (longest if turned else 10),
        )
        _fill(axes, np.where(np.isnan(values), 0, np.clip(intensity, 0, 1)))
        for (i, j), value in np.ndenumerate(values) if n <= ANNOTATED else ():
            if not np.isnan(value):
                text = number.format(value)
                axes.text(j, i, text, ha="center", va="center", fontsize=10 if n <= 6 else 8.5)
        axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), xlabel=xlabel, ylabel=ylabel)
        axes.set_xticks(ticks, labels=below, rotation=90 if turned else 0, fontsize=size)
        axes.set_yticks(ticks, labels=beside, fontsize=size)
        axes.tick_params(length=0, pad=4)
        axes.spines[:].set(visible=True, color=GRID, linewidth=0.8)
        return fig


def _fill(axes: Axes, opacity: NDArray[np.float64]) -> None:
    """Fill cells, those of equal opacity as one path."""
    few = len(opacity) <= ANNOTATED
    half = 0.48 if few else 0.5
    levels = np.round(50 * opacity) / 50
    for level in np.unique(levels[levels > 0]):
        squares = [
            Path([(j - half, i - half), (j + half, i - half), (j + half, i + half),
                  (j - half, i + half), (j - half, i - half)], closed=True)
            for i, j in np.argwhere(levels == level)
        ]  # fmt: skip
        path = Path.make_compound_path(*squares)
        axes.add_patch(PathPatch(path, color=HEAT if few else BLUE, alpha=level, linewidth=0))


def _ticks(number: int) -> list[int]:
    """Return all rows if there are few, else the first and every fifth or tenth."""
    step = 1 if number <= NAMED else 5 if number <= 25 else max(10, number // 100 * 10)
    return sorted({0, *range(step - 1, number, step)})
