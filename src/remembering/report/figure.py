"""What all figures share: size, colours, titles, and how they are written.

A figure is as wide as the screen of a phone, so that it is readable there without scrolling; larger
screens enlarge it. Colours follow Okabe and Ito, darkened until text in them is readable; in dark
mode a style sheet replaces each by a lighter one. Figures are made without pyplot, so that no
global state changes and no window opens.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath
from numpy.typing import NDArray

from remembering.report.groups import Statistic
from remembering.runtime.files import write_atomic
from remembering.runtime.text import printable

WIDTH = 340.0
"""Width of every figure in points."""
PAGE, INK, QUIET, GRID = "#ffffff", "#24292f", "#57606a", "#d8dee4"
"""Background, text and axes, secondary text, grid lines."""
BLUE, VERMILION, GREEN, PURPLE, ORANGE, GREY = (
    "#0069a8",
    "#b84a00",
    "#007a59",
    "#a3417b",
    "#8a5f00",
    "#656d76",
)
"""Lines, and labels in the same colour."""
HEAT = "#5fb0e5"
"""Cells of heat maps at full intensity; light enough for dark text."""
DARK = {
    PAGE: "#0f1419",
    INK: "#e6edf3",
    QUIET: "#9aa7b4",
    GRID: "#2a333d",
    BLUE: "#56b4e9",
    VERMILION: "#ff8b52",
    GREEN: "#2fc99a",
    PURPLE: "#e79bc6",
    ORANGE: "#f0b429",
    GREY: "#8f9ba7",
    HEAT: "#1c6499",
}
"""The colours of dark mode."""
FONTS = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": PAGE,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.fontsize": 9.5,
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
_TITLE, _SETTINGS = 11.5, 9.0


@dataclass(frozen=True)
class Plot:
    """A figure and its texts.

    Attributes:
        figure: The figure.
        title: What it shows, in a few words; differs from that of all other figures of a page.
        caption: How to read it.
        numbers: Its main numbers, for readers who cannot see it.
    """

    figure: Figure
    title: str
    caption: str
    numbers: str = ""

    @property
    def description(self) -> str:
        """Caption and numbers."""
        return f"{self.caption} {self.numbers}".strip()

    def svg(self, prefix: str = "figure") -> str:
        """Return the figure as an SVG element with title and description.

        Equal figures give equal bytes. Coordinates are rounded, so that they do not depend on the
        last bits of floating-point numbers.

        Args:
            prefix: Begins all ids; unique in a page.
        """
        drawing = _with_ids(self._drawing, prefix)
        end = drawing.index(">")
        names = f"{prefix}-title", f"{prefix}-description"
        head = re.sub(r' (width|height|version)="[^"]*"', "", drawing[:end])
        head += f' role="img" aria-labelledby="{names[0]}" aria-describedby="{names[1]}">\n'
        for tag, name, text in zip(
            ("title", "desc"), names, (self.title, self.description), strict=True
        ):
            head += f'<{tag} id="{name}">{escape(text)}</{tag}>\n'
        return head + drawing[end + 1 :].strip()

    @cached_property
    def _drawing(self) -> str:
        """The SVG element without metadata and comments, and with rounded numbers."""
        rendered = _rendered(self.figure, "svg", {"Date": None, "Creator": None}).decode("utf-8")
        drawing = rendered[rendered.index("<svg") :]
        drawing = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawing, flags=re.DOTALL)
        drawing = re.sub(r"<[^>]*>", lambda tag: _rounded(tag[0]), drawing)
        return re.sub(r"\s*\n\s*", "\n", drawing)

    def document(self) -> str:
        """Return the figure as an SVG file that follows light and dark mode."""
        width, height = (round(96 * inches) for inches in self.figure.get_size_inches())
        drawing = self.svg()
        style = f"<style>text {{ font-family: {FONTS} !important; }}\n{dark_mode()}</style>"
        head, end, body = drawing.partition("</desc>")
        head = head.replace("<svg", f'<svg width="{width}" height="{height}"', 1)
        return f"{head}{end}\n{style}{body}\n"

    def save(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write `name`.png and `name`.svg into a folder; equal figures give equal bytes."""
        png_path, svg_path = (folder / f"{name}.{kind}" for kind in ("png", "svg"))
        write_atomic(png_path, _rendered(self.figure, "png", {"Software": None}))
        write_atomic(svg_path, self.document().encode("utf-8"))
        return png_path, svg_path


def dark_mode() -> str:
    """Return the style sheet that replaces the colours of figures in dark mode."""
    rules = [
        f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important; }}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    ]
    return "\n".join(["@media screen and (prefers-color-scheme: dark) {", *rules, "}"]) + "\n"


def canvas(
    title: str,
    settings: str,
    *,
    height: float,
    left: float = 40,
    right: float = 12,
    bottom: float = 36,
) -> tuple[Figure, Axes]:
    """Return a figure with a title, below it the settings that its numbers belong to, and axes.

    Args:
        title: Broken into up to three lines.
        settings: Broken into up to three lines.
        height: Height of the axes in points; that of the figure results.
        left: Space for the labels of the vertical axis.
        right: Space on the right, such as for labels of lines.
        bottom: Space for the labels of the horizontal axis.
    """
    titles = wrap(title, WIDTH - 8, _TITLE, bold=True, lines=3)
    facts = wrap(settings, WIDTH - 8, _SETTINGS, lines=3)
    total = bottom + height + 20 + 15 * len(titles) + 12.5 * len(facts)
    fig = Figure(figsize=(WIDTH / 72, total / 72), dpi=72)
    y = total - 3.0
    for line in titles:
        y -= 14
        fig.text(2 / WIDTH, y / total, line, fontsize=_TITLE, fontweight="bold")
    y -= 2
    for line in facts:
        y -= 12.5
        fig.text(2 / WIDTH, y / total, line, fontsize=_SETTINGS, color=QUIET)
    place = (left / WIDTH, bottom / total, (WIDTH - left - right) / WIDTH, height / total)
    return fig, fig.add_axes(place)


@lru_cache(4096)
def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a text in points, in the font that figures are laid out with."""
    font = FontProperties(family="DejaVu Sans", size=size, weight="bold" if bold else "normal")
    return float(TextToPath().get_text_width_height_descent(text, font, ismath=False)[0])


def wrap(text: str, width: float, size: float, *, bold: bool = False, lines: int = 2) -> list[str]:
    """Break a text into lines of at most some width in points; what remains is cut.

    Characters that no font can draw are escaped.

    >>> wrap("one two three", 50, 10)
    ['one two', 'three']
    """
    found: list[str] = []
    for word in map(printable, text.split()):
        longer = f"{found[-1]} {word}" if found else word
        if found and text_width(longer, size, bold=bold) <= width:
            found[-1] = longer
        else:
            found.append(word)
    if len(found) > lines:
        found = [*found[: lines - 1], " ".join(found[lines - 1 :])]
    return [_cut(line, width, size, bold) for line in found]


def _cut(line: str, width: float, size: float, bold: bool) -> str:
    full = text_width(line, size, bold=bold)
    if full <= width:
        return line
    line = line[: 2 + int(len(line) * 1.5 * width / full)]  # a guess, which spares most of the loop
    while line and text_width(f"{line}…", size, bold=bold) > width:
        line = line[:-1]
    return f"{line}…"


def means(values: Sequence[Statistic | None]) -> NDArray[np.float64]:
    """Return the means in percent; NaN where nothing was measured."""
    return np.array([np.nan if value is None else 100 * value.mean for value in values])


def deviations(values: Sequence[Statistic | None]) -> NDArray[np.float64]:
    """Return the standard deviations in percent; 0 where there are none."""
    return np.array(
        [0.0 if v is None or v.deviation is None else 100 * v.deviation for v in values]
    )


def decades(values: Sequence[float]) -> tuple[float, float]:
    """Return the powers of ten around some numbers, with space for markers.

    >>> decades([20_000, 300_000])
    (10000.0, 1000000.0)
    """
    low, high = (math.log10(value) for value in (min(values) / 1.3, max(values) * 1.3))
    return 10.0 ** math.floor(low), 10.0 ** math.ceil(high)


def _rounded(tag: str) -> str:
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", tag)


def _with_ids(drawing: str, prefix: str) -> str:
    """Number the ids that are used, and remove the others."""
    used = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', drawing))
    names = {name: f"{prefix}-{i}" for i, name in enumerate(used, start=1)}

    def replaced(tag: re.Match[str]) -> str:
        text = re.sub(
            r' id="([^"]*)"', lambda i: f' id="{names[i[1]]}"' if i[1] in names else "", tag[0]
        )
        return re.sub(r'(href="#|url\(#)([^")]+)', lambda i: i[1] + names[i[2]], text)

    return re.sub(r"<[^>]*>", replaced, drawing)


def _rendered(fig: Figure, kind: str, metadata: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    with mpl.rc_context(STYLE):
        fig.savefig(content, format=kind, dpi=192 if kind == "png" else 72, metadata=metadata)
    return content.getvalue()
