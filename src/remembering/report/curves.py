"""Lines over the tasks learned so far, with names and values at their ends instead of a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from remembering.report.figure import (
    GREY,
    STYLE,
    WIDTH,
    canvas,
    deviations,
    means,
    text_width,
    wrap,
)
from remembering.report.groups import Statistic

_SIZE, _LINE = 9.5, 11.5
"""Font size and line height of labels in points."""
_WIDEST = 122.0
"""Labels are broken into lines of at most this width."""
_LEADER = 16.0
MARKED_TASKS = 12
"""Up to this number of tasks, each has a marker."""
BANDED = 8
"""Up to this number of curves, all have a band of deviations; else our own has."""


@dataclass(frozen=True)
class Look:
    """How a line is drawn."""

    colour: str = GREY
    marker: str = "o"
    dashes: Any = "-"
    width: float = 1.6
    bold: bool = False


@dataclass(frozen=True)
class Curve:
    """A number after each task; None where it was not measured."""

    label: str
    values: tuple[Statistic | None, ...]
    look: Look


@dataclass(frozen=True)
class Label:
    """A text beside the axes that belongs to a point within them."""

    text: str
    x: float
    y: float
    colour: str
    bold: bool = False


def draw_curves(
    title: str, settings: str, curves: Sequence[Curve], ylabel: str = "Accuracy (%)"
) -> Figure:
    """Draw the means over seeds with a band of ± one standard deviation.

    A method that was evaluated after the last task only is a single point there.

    Args:
        title: Title of the figure.
        settings: What its numbers belong to.
        curves: Lines over the same tasks. Those without any value are left out; at least one has.
        ylabel: What is drawn.
    """
    curves = [curve for curve in curves if any(curve.values)]
    tasks = len(curves[0].values)
    labels = [_end(curve) for curve in curves]
    with mpl.rc_context(STYLE):
        low = lower_limit([value for curve in curves for value in curve.values])
        fig, axes = canvas(
            title,
            settings,
            height=max(190.0, needed_height(labels)),
            right=label_space(labels),
        )
        for curve in curves:
            _draw(axes, curve, banded=curve.look.bold or len(curves) <= BANDED)
        note = f", axis from {low}" if low else ""
        axes.set(xlabel="Tasks learned", ylabel=f"{ylabel}{note}", ylim=(low, 100))
        axes.set_xlim(1 if tasks > 1 else 0.5, max(tasks, 1.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        place_labels(fig, axes, labels)
        return fig


def _draw(axes: Axes, curve: Curve, *, banded: bool) -> None:
    look, mean, spread = curve.look, means(curve.values), deviations(curve.values)
    x = np.arange(1, len(mean) + 1)
    alone = np.count_nonzero(~np.isnan(mean)) == 1
    axes.plot(
        x,
        mean,
        label=curve.label.lstrip("_"),
        color=look.colour,
        linestyle="none" if alone else look.dashes,
        linewidth=look.width,
        marker=look.marker if alone or len(x) <= MARKED_TASKS else "none",
        markersize=6.5 if alone else 4.5,
        clip_on=False,
        zorder=3 if look.bold else 2.5,
    )
    if spread.any() and banded and not alone:
        low, high = np.clip(mean - spread, 0, 100), np.clip(mean + spread, 0, 100)
        axes.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
    elif spread.any() and alone:
        axes.errorbar(x, mean, spread, fmt="none", ecolor=look.colour, elinewidth=1, clip_on=False)


def _end(curve: Curve) -> Label:
    """Return the label of the last value of a curve."""
    mean = means(curve.values)
    last = int(np.flatnonzero(~np.isnan(mean))[-1])
    text = f"{mean[last]:.1f} {curve.label}"
    return Label(text, last + 1, mean[last], curve.look.colour, curve.look.bold)


def lower_limit(values: Sequence[Statistic | None]) -> int:
    """Return where an axis of percentages begins: at 0, unless all values crowd at the top."""
    low = min((100 * (v.mean - (v.deviation or 0)) for v in values if v), default=0.0)
    return 90 if low >= 91 else 50 if low >= 55 else 0


def label_space(labels: Sequence[Label]) -> float:
    """Return the space that labels need on the right of the axes, in points."""
    widths = (
        text_width(line, _SIZE, bold=label.bold) for label in labels for line in _lines(label)
    )
    return _LEADER + max(widths) + 4


def needed_height(labels: Sequence[Label]) -> float:
    """Return the height that labels need one below the other, in points."""
    return sum(_LINE * len(_lines(label)) + 1 for label in labels)


def place_labels(fig: Figure, axes: Axes, labels: Sequence[Label]) -> None:
    """Write labels on the right of the axes, each near its point, without overlap.

    A thin line connects a label to its point if it had to be moved or the point is not at the edge.
    """
    box = axes.get_window_extent()
    height = fig.get_figheight() * 72
    points = [axes.transData.transform((label.x, label.y)) for label in labels]
    order = sorted(range(len(labels)), key=lambda i: (-points[i][1], i))
    heights = [_LINE * len(_lines(labels[i])) + 1 for i in order]
    middles = spread([points[i][1] for i in order], heights, box.y0 - 4, box.y1 + 6)
    for i, middle in zip(order, middles, strict=True):
        label, (x, y) = labels[i], points[i]
        lines = _lines(label)
        start = box.x1 + _LEADER
        if abs(middle - y) > 1 or x < box.x1 - 1:
            way = [(x + 4, y), (start - 3, middle)]
            if x < box.x1 - 1:
                way.insert(1, (box.x1 + 5, y))
            xs, ys = zip(*way, strict=True)
            leader = Line2D(
                [value / 72 for value in xs],
                [value / 72 for value in ys],
                transform=fig.dpi_scale_trans,
                color=label.colour,
                linewidth=0.6,
                alpha=0.7,
            )
            fig.add_artist(leader)
        for k, line in enumerate(lines):
            base = middle + _LINE * (len(lines) / 2 - k - 1) + 2.6
            fig.text(
                start / WIDTH,
                base / height,
                line,
                fontsize=_SIZE,
                color=label.colour,
                fontweight="bold" if label.bold else "normal",
            )


def spread(
    preferred: Sequence[float], heights: Sequence[float], low: float, high: float
) -> list[float]:
    """Return places near the preferred ones at which texts do not overlap.

    Neighbours that would overlap form a block around the mean of their preferred places.

    Args:
        preferred: Middles of the texts, decreasing.
        heights: Heights of the texts.
        low: Lower end of the space, if it suffices.
        high: Upper end of the space.

    >>> spread([50, 49, 10], [10, 10, 10], 0, 100)
    [54.5, 44.5, 10.0]
    """
    blocks: list[list[int]] = []
    tops: list[float] = []

    def top(block: list[int]) -> float:
        above, offsets = 0.0, []
        for i in block:
            offsets.append(preferred[i] + above + heights[i] / 2)
            above += heights[i]
        return min(max(math.fsum(offsets) / len(block), low + above), high)

    for i in range(len(preferred)):
        blocks.append([i])
        tops.append(top([i]))
        while len(blocks) > 1 and tops[-2] - sum(heights[j] for j in blocks[-2]) < tops[-1]:
            merged = blocks[-2] + blocks[-1]
            blocks[-2:], tops[-2:] = [merged], [top(merged)]
    places = []
    for block, y in zip(blocks, tops, strict=True):
        for i in block:
            places.append(y - heights[i] / 2)
            y -= heights[i]
    return places


def _lines(label: Label) -> list[str]:
    return wrap(label.text, _WIDEST, _SIZE, bold=label.bold)
