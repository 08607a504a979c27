"""Figures of comparisons: accuracy after each task, and accuracy against what is kept."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from remembering.report.comparison import Comparison, Row
from remembering.report.curves import (
    Curve,
    Label,
    Look,
    draw_curves,
    label_space,
    lower_limit,
    needed_height,
    place_labels,
)
from remembering.report.figure import STYLE, Plot, canvas, decades
from remembering.report.looks import method_look
from remembering.report.table import bytes_text


def method_curves(comparison: Comparison) -> Plot:
    """Draw the accuracy over the tasks learned so far, after each task."""
    title = f"{comparison.title}: accuracy after each task"
    curves = [
        Curve(row.title, row.curve, look)
        for row, look in zip(comparison.rows, _looks(comparison.rows), strict=True)
    ]
    return Plot(
        draw_curves(title, comparison.short_settings, curves),
        title,
        "Mean accuracy over the tasks learned so far, after each task, on single images unless "
        "another routing unit is named. Methods that were evaluated after the last task only are "
        "single points."
        + (" Bands are ± one standard deviation over seeds." if len(comparison.seeds) > 1 else ""),
        _numbers(comparison),
    )


def cost_chart(comparison: Comparison) -> Plot:
    """Draw the accuracy after the last task against the bytes that each method keeps."""
    looks = _looks(comparison.rows)
    labels = [
        Label(
            f"{100 * row.accuracy.mean:.1f} {row.title}",
            max(row.bytes, 1),
            100 * row.accuracy.mean,
            look.colour,
            look.bold,
        )
        for row, look in zip(comparison.rows, looks, strict=True)
    ]
    title = f"{comparison.title}: accuracy against bytes kept"
    with mpl.rc_context(STYLE):
        fig, axes = canvas(
            title,
            comparison.short_settings,
            height=max(190.0, needed_height(labels)),
            right=label_space(labels),
        )
        for row, look in zip(comparison.rows, looks, strict=True):
            axes.errorbar(
                max(row.bytes, 1),
                100 * row.accuracy.mean,
                100 * (row.accuracy.deviation or 0),
                fmt=look.marker,
                color=look.colour,
                markersize=8 if look.bold else 6,
                elinewidth=1,
                linestyle="none",
                label=row.title.lstrip("_"),
                clip_on=False,
                zorder=3,
            )
        low = lower_limit([row.accuracy for row in comparison.rows])
        sizes = [max(row.bytes, 1) for row in comparison.rows]
        note = f", axis from {low}" if low else ""
        axes.set(
            xscale="log",
            xlim=decades(sizes),
            ylim=(low, 100),
            xlabel="Bytes kept besides the backbone (log scale)",
            ylabel=f"Accuracy (%){note}",
        )
        axes.xaxis.set_major_locator(LogLocator(numticks=4))
        axes.xaxis.set_major_formatter(FuncFormatter(_bytes))
        axes.xaxis.set_minor_locator(NullLocator())
        place_labels(fig, axes, labels)
    return Plot(
        fig,
        title,
        "Accuracy after the last task against everything that a method keeps besides the frozen "
        "backbone, including stored images. Better is up and left.",
        _numbers(comparison),
    )


def _numbers(comparison: Comparison) -> str:
    """Return the numbers of the figures, for readers who cannot see them."""
    ends = [
        f"{row.title} {100 * row.accuracy.mean:.1f} % ({bytes_text(row.bytes)})"
        for row in comparison.rows
    ]
    return f"After the last task: {'; '.join(ends)}."


def _looks(rows: Sequence[Row]) -> list[Look]:
    return [method_look(row.seeds.method, row.unit, place) for place, row in enumerate(rows)]


def _bytes(value: float, _position: int | None = None) -> str:
    return bytes_text(value).replace(".0 ", " ")
