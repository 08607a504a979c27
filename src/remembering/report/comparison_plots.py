"""A comparison of methods as figures: accuracy after each task, and what accuracy costs."""

from __future__ import annotations

import math

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from remembering.report.comparison import Comparison, Row, bytes_text
from remembering.report.plots import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    STYLE,
    VERMILION,
    legend_text,
    level,
    line,
    line_break,
)

_COLOURS = (GREEN, ORANGE, PURPLE, SKY, GREY)
_MARKERS = "ovs^DPX<>"
_DASHES = ("-", (0, (5, 2)), (0, (1, 1)), (0, (4, 1, 1, 1)))


def method_curves(comparison: Comparison) -> Figure:
    """Mean accuracy over the tasks seen so far, after each task; bands are ± one deviation."""
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=_size(comparison))
        axes = fig.subplots()
        for place, row in enumerate(comparison.rows):
            colour, marker, dashes = _look(row, place)
            if None in row.curve:
                level(axes, row.score("accuracy"), row.title, colour)
            else:
                line(axes, row.curve, row.title, colour, marker=marker, linestyle=dashes)
        _title(fig, axes, f"{comparison.title}: accuracy after each task", comparison)
        axes.set(xlabel="Tasks learned", ylabel="Accuracy (%)", ylim=(0, 102))
        axes.set_xlim(0.8, max(comparison.first["tasks"], 2) + 0.2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        _legend(fig, axes)
        return fig


def cost_chart(comparison: Comparison) -> Figure:
    """Accuracy after the last task against the bytes that each method keeps."""
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=_size(comparison))
        axes = fig.subplots()
        for place, row in enumerate(comparison.rows):
            score = row.score("accuracy")
            if score is None:
                continue
            colour, marker, _ = _look(row, place)
            axes.errorbar(
                max(row.bytes, 1),
                100 * score.mean,
                100 * (score.deviation or 0),
                fmt=marker,
                color=colour,
                markersize=8,
                capsize=3,
                linestyle="none",
                label=legend_text(row.title),
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value)))
        axes.xaxis.set_minor_locator(NullLocator())
        _title(fig, axes, f"{comparison.title}: accuracy against what is kept", comparison)
        axes.set(
            xlabel="Bytes kept beside the backbone (logarithmic scale)",
            ylabel="Accuracy after the last task (%)",
            ylim=(0, 105),
        )
        _legend(fig, axes)
        return fig


def _look(row: Row, place: int) -> tuple[str, str, object]:
    """Ours is blue for a single image and vermilion for a whole task, as in every figure."""
    if row.first["method"].startswith("ours"):
        colour = VERMILION if row.unit == "task" else BLUE
        return colour, "s" if row.unit == "task" else "o", _DASHES[row.first["method"] != "ours"]
    colours, dashes = len(_COLOURS), len(_DASHES)
    marker = _MARKERS[place % len(_MARKERS)]
    return _COLOURS[place % colours], marker, _DASHES[place // colours % dashes]


def _size(comparison: Comparison) -> tuple[float, float]:
    """The legend takes its room below, whatever the number of methods."""
    return 7.4, 4.4 + 0.2 * math.ceil(len(comparison.rows) / 3)


def _legend(fig: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)


def _title(fig: Figure, axes: Axes, title: str, comparison: Comparison) -> None:
    fig.suptitle(line_break(title), fontsize=12, fontweight="bold", color=INK)
    axes.set_title(line_break(comparison.settings, 90), fontsize=9, fontweight="normal")


def spread_text(comparison: Comparison) -> str:
    """What the eye takes from the figures, in words."""
    ends = []
    for row in comparison.rows:
        score = row.score("accuracy")
        if score is not None:
            ends.append(f"{row.title} {100 * score.mean:.1f} % ({bytes_text(row.bytes)})")
    return "In the end: " + "; ".join(ends) + "."
