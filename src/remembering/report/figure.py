"""What all figures share: colours, lines, titles, and how they are written.

Colours are those of Okabe and Ito, which remain distinct with every kind of colour vision. Figures
are made without pyplot, so that no global state changes and no window opens.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from remembering.report.groups import Statistic
from remembering.runtime.files import write_atomic

INK = "#24292f"
"""Text and axes. The page replaces this colour, to follow light and dark mode."""
GRID = "#d8dee4"
"""Grid lines; replaced as well."""

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#8c959f",
)
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "font.size": 11,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 2,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "remembering",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


def accuracy_axes(axes: Axes, tasks: int) -> None:
    """Label the axes of accuracy after each task."""
    axes.set(xlabel="Tasks learned", ylabel="Accuracy (%)", ylim=(0, 102))
    axes.set_xlim(0.8, max(tasks, 2) + 0.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))


def set_title(fig: Figure, axes: Axes, title: str, settings: str) -> None:
    """Set the title, and below it the settings that accuracies belong to."""
    fig.suptitle(line_break(title), fontsize=12, fontweight="bold", color=INK)
    axes.set_title(line_break(settings, 84), fontsize=9, fontweight="normal")


def line(
    axes: Axes, curve: Sequence[Statistic | None], label: str, colour: str, **look: Any
) -> None:
    """Draw the means over seeds, with a band of ± one standard deviation."""
    x = np.arange(1, len(curve) + 1)
    mean, spread = means(curve), deviations(curve)
    look.setdefault("marker", "o" if len(curve) == 1 else None)
    axes.plot(x, mean, label=legend_text(label), color=colour, **look)
    if spread.any():
        axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.16, linewidth=0)


def level(axes: Axes, value: Statistic | None, label: str, colour: str) -> None:
    """Draw the only accuracy of a method that is evaluated once, as a horizontal line."""
    if value is None:
        return
    mean, spread = 100 * value.mean, 100 * (value.deviation or 0)
    axes.axhline(mean, color=colour, linestyle="-.", linewidth=1.6, label=legend_text(label))
    if spread:
        axes.axhspan(mean - spread, mean + spread, color=colour, alpha=0.12, linewidth=0)


def means(values: Sequence[Statistic | None]) -> NDArray[np.float64]:
    """Return the means in percent; NaN where nothing was measured."""
    return np.array([np.nan if value is None else 100 * value.mean for value in values])


def deviations(values: Sequence[Statistic | None]) -> NDArray[np.float64]:
    """Return the standard deviations in percent; 0 where there are none."""
    return np.array(
        [0.0 if v is None or v.deviation is None else 100 * v.deviation for v in values]
    )


def shorten(text: str, length: int) -> str:
    """Cut a text that is too long."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def line_break(text: str, length: int = 64) -> str:
    """Break a long title into two lines."""
    words = shorten(text, 2 * length).split()
    first = ""
    while words and len(first) + len(words[0]) < length:
        first = f"{first} {words.pop(0)}".strip()
    return "\n".join(part for part in (first, " ".join(words)) if part)


def legend_text(label: str) -> str:
    """Shorten a label; matplotlib omits labels with a leading underscore."""
    return shorten(label, 30).lstrip("_")


def svg(fig: Figure, *, transparent: bool = False) -> str:
    """Return a figure as SVG; equal figures give equal bytes."""
    return _rendered(fig, "svg", transparent, {"Date": None, "Creator": None}).decode("utf-8")


def save(fig: Figure, folder: str | Path, name: str) -> tuple[Path, Path]:
    """Write `name`.png and `name`.svg into a folder; equal figures give equal bytes."""
    png_path, svg_path = (Path(folder) / f"{name}.{kind}" for kind in ("png", "svg"))
    write_atomic(png_path, _rendered(fig, "png", False, {"Software": None}))
    write_atomic(svg_path, svg(fig).encode("utf-8"))
    return png_path, svg_path


def _rendered(fig: Figure, kind: str, transparent: bool, metadata: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    with mpl.rc_context(STYLE):
        fig.savefig(content, format=kind, dpi=160, transparent=transparent, metadata=metadata)
    return content.getvalue()
