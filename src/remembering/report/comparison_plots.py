"""Figures of comparisons: accuracy after each task, and accuracy against what is kept."""

from __future__ import annotations

import math

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from remembering.report.comparison import Comparison, Row
from remembering.report.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    STYLE,
    VERMILION,
    accuracy_axes,
    legend_text,
    level,
    line,
    set_title,
)
from remembering.report.table import bytes_text

_COLOURS = (GREEN, ORANGE, PURPLE, SKY, GREY)
_MARKERS = "ovs^DPX<>"
_DASHES = ("-", (0, (5, 2)), (0, (1, 1)), (0, (4, 1, 1, 1)))


def method_curves(comparison: Comparison) -> Figure:
    """Draw the accuracy over the tasks learned so far, after each task."""
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=_size(comparison))
        axes = fig.subplots()
        for place, row in enumerate(comparison.rows):
            colour, marker, dashes = _look(row, place)
            if None in row.curve:
                level(axes, row.accuracy, row.title, colour)
            else:
                line(axes, row.curve, row.title, colour, marker=marker, linestyle=dashes)
        title = f"{comparison.title}: accuracy after each task"
        set_title(fig, axes, title, comparison.settings)
        accuracy_axes(axes, len(comparison.first.tasks))
        _legend(fig, axes)
        return fig


def cost_chart(comparison: Comparison) -> Figure:
    """Draw the accuracy after the last task against the bytes that each method keeps."""
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=_size(comparison))
        axes = fig.subplots()
        for place, row in enumerate(comparison.rows):
            colour, marker, _ = _look(row, place)
            axes.errorbar(
                max(row.bytes, 1),
                100 * row.accuracy.mean,
                100 * (row.accuracy.deviation or 0),
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
        title = f"{comparison.title}: accuracy against footprint"
        set_title(fig, axes, title, comparison.settings)
        axes.set(
            xlabel="Bytes kept besides the backbone (logarithmic scale)",
            ylabel="Accuracy after the last task (%)",
            ylim=(0, 105),
        )
        _legend(fig, axes)
        return fig


def spread_text(comparison: Comparison) -> str:
    """Return the numbers of the figures, for readers who cannot see them."""
    ends = [
        f"{row.title} {100 * row.accuracy.mean:.1f} % ({bytes_text(row.bytes)})"
        for row in comparison.rows
    ]
    return f"After the last task: {'; '.join(ends)}."


def _look(row: Row, place: int) -> tuple[str, str, object]:
    """Return colour, marker and dashes; our method is blue, and vermilion under unit task."""
    if row.seeds.method.startswith("ours"):
        colour = VERMILION if row.unit == "task" else BLUE
        return colour, "s" if row.unit == "task" else "o", _DASHES[row.seeds.method != "ours"]
    colours, dashes = len(_COLOURS), len(_DASHES)
    marker = _MARKERS[place % len(_MARKERS)]
    return _COLOURS[place % colours], marker, _DASHES[place // colours % dashes]


def _size(comparison: Comparison) -> tuple[float, float]:
    """Return the size of a figure whose legend, below it, names all methods."""
    return 7.4, 4.4 + 0.2 * math.ceil(len(comparison.rows) / 3)


def _legend(fig: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
