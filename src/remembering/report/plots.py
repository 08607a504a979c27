"""Figures of experiments.

Importing this module imports matplotlib: do it where a plot is drawn, not where a command starts.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from remembering.errors import RememberingError
from remembering.experiments.published import FOOTPRINTS
from remembering.report.figure import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    STYLE,
    VERMILION,
    accuracy_axes,
    deviations,
    level,
    line,
    line_break,
    means,
    set_title,
    shorten,
)
from remembering.report.groups import Group, Seeds, Statistic
from remembering.report.table import size
from remembering.report.tables import oracle, total_size

ANNOTATED_TASKS = 10


def accuracy_curves(group: Group) -> Figure:
    """Draw the accuracy over the tasks learned so far, after each task."""
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(6.6, 5.4))
        axes = fig.subplots()
        for unit in group.units:
            colour, marker = _unit_look(unit, group)
            line(axes, group.model.accuracy_after(unit), unit, colour, marker=marker)
        given = group.curve(lambda routing: routing.oracle_after)
        line(axes, given, "correct adapter given", INK, linestyle=(0, (5, 2)))
        ablated = group.curve(lambda routing: routing.ablated_after)
        line(axes, ablated, "routing ablated", PURPLE, linestyle=(0, (1, 1)))
        for baseline in group.baselines:
            _baseline_lines(axes, baseline, group)
        set_title(fig, axes, f"{group.title}: accuracy after each task", group.short_settings)
        accuracy_axes(axes, group.task_count)
        fig.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return fig


def score_heatmap(group: Group) -> Figure:
    """Draw the router scores of the images of each task under the expert of each task.

    As in the paper's figure, scores are scaled to 0..1: here in each row (the images of one task),
    because the smallest score of the row decides. Seeds are averaged after scaling.
    """
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        scores = np.mean([_scaled_rows(router.scores) for router in group.routers], 0)
        tasks, name = len(scores), group.routers[0].score_name
        side = float(np.clip(0.52 * tasks + 2, 3.6, 6.6))
        fig = Figure(figsize=(side + 1.7, side))
        axes = fig.subplots()
        image = axes.imshow(
            scores, cmap="cividis", vmin=0, vmax=1, interpolation="none", aspect="equal"
        )
        bar = fig.colorbar(image, ax=axes, shrink=0.8, label=f"{name}, 0–1 per row")
        bar.outline.set_visible(False)
        axes.spines[:].set_visible(False)
        axes.set(
            title=line_break(f"{group.title}: {name}", 40),
            xlabel="Expert of task",
            ylabel="Test images of task",
        )
        for axis in (axes.xaxis, axes.yaxis):
            places = _task_ticks(tasks)
            axis.set_ticks(places, labels=[str(place + 1) for place in places])
        if tasks <= ANNOTATED_TASKS:
            names = _task_names(group)
            if names:
                axes.set_yticks(range(tasks), labels=names)
            for (i, j), value in np.ndenumerate(scores):
                colour = "#ffffff" if value < 0.55 else "#111111"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
        return fig


def novelty_curves(group: Group) -> Figure:
    """Draw how well images of tasks to come are detected, and false alarms on learned tasks."""
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(6.6, 4.2))
        axes = fig.subplots()
        auroc = group.curve(lambda routing: routing.novelty.auroc)
        line(axes, auroc, "AUROC, new against learned", BLUE)
        rate = group.routing[0].novelty.rate
        alarms = group.curve(lambda routing: routing.novelty.false_alarms)
        line(axes, alarms, f"false alarms, target {rate:.0%}", ORANGE, marker="v")
        axes.axhline(100 * rate, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        set_title(fig, axes, f"{group.title}: novelty detection", group.short_settings)
        axes.set(xlabel="Tasks learned", ylabel="%", ylim=(0, 102))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        fig.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=1)
        return fig


def footprint_chart(groups: Sequence[Group]) -> Figure:
    """Draw the parameters that models keep, beside the numbers that the paper prints."""
    labels = [f"Paper: {item.method}" for item in FOOTPRINTS]
    labels += [f"{shorten(group.title, 34)}\n{shorten(group.backbone, 34)}" for group in groups]
    paper = [item.millions * 1e6 for item in FOOTPRINTS]
    adapters = [float(group.first.footprint.adapters) for group in groups]
    total = [float(group.first.footprint.parameters) for group in groups]
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(7.4, 1.9 + 0.28 * len(paper) + 0.56 * len(groups)))
        axes = fig.subplots()
        # A pair of bars takes twice the height of one of the paper's bars.
        pairs = np.array([len(paper) + 0.5 + 2 * i for i in range(len(groups))])
        printed = [f"{item.millions:.2f}M ({item.where})" for item in FOOTPRINTS]
        for places, widths, texts, colour, label in (
            (range(len(paper)), paper, printed, GREY, "paper, CIFAR10/5"),
            (pairs - 0.4, adapters, [size(n) for n in adapters], BLUE, "adapters only"),
            (pairs + 0.4, total, [total_size(g) for g in groups], ORANGE, "everything kept"),
        ):
            # A logarithmic axis cannot show the 0 of an experiment without adapters.
            shown = [max(width, 1) for width in widths]
            bars = axes.barh(places, shown, color=colour, height=0.72, label=label)
            axes.bar_label(bars, texts, padding=4, fontsize=9)
        axes.set_yticks([*range(len(paper)), *pairs], labels=labels)
        axes.invert_yaxis()
        axes.set_xscale("log")
        sizes = [*paper, *adapters, *total]
        axes.set_xlim(10 ** np.floor(np.log10(max(min(sizes), 1)) - 0.3), max(sizes) * 30)
        axes.xaxis.set_major_formatter(FuncFormatter(_parameters))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="y", visible=False)
        axes.set(title="Memory footprint", xlabel="Parameters (logarithmic scale)")
        fig.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return fig


def variant_bars(groups: Sequence[Group]) -> Figure:
    """Draw the variants of one experiment (capacity E, replay memory M) side by side."""
    if not groups:
        raise RememberingError("there are no variants to compare; give at least one group")
    shared = [unit for unit in groups[0].units if all(unit in group.units for group in groups)]
    series: list[tuple[str, list[Statistic | None], str]] = [
        (unit, [group.model.accuracy(unit) for group in groups], _unit_look(unit, groups[0])[0])
        for unit in shared
    ]
    series.append(("correct adapter given", [group.statistic(oracle) for group in groups], GREY))
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(6.6, 4.6))
        axes = fig.subplots()
        width = 0.8 / len(series)
        for k, (label, values, colour) in enumerate(series):
            places = [i + (k - (len(series) - 1) / 2) * width for i in range(len(groups))]
            axes.bar(places, means(values), width * 0.92, color=colour, label=label)
            spread = deviations(values)
            if spread.any():
                axes.errorbar(
                    places, means(values), spread, fmt="none", ecolor=INK, capsize=2, lw=1.2
                )
            _published_points(axes, groups, label, places)
        names = [shorten(group.variant or "default", 18) for group in groups]
        axes.set_xticks(range(len(groups)), labels=names)
        axes.grid(axis="x", visible=False)
        settings = " | ".join(dict.fromkeys(group.short_settings for group in groups))
        set_title(fig, axes, f"{groups[0].experiment}: accuracy by variant", settings)
        axes.set(ylabel="Accuracy (%)", ylim=(0, 105))
        fig.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return fig


def _baseline_lines(axes: Axes, baseline: Seeds, group: Group) -> None:
    """Draw a method beside the model: a curve per routing unit, or a level if only the end is."""
    for unit in baseline.units:
        label = baseline.first.method.title + ("" if unit == "sample" else f" ({unit})")
        colour = ORANGE if baseline.method == "joint" else GREY
        marker, style = "v", "--"
        if len(baseline.units) > 1:
            colour, marker = _unit_look(unit, group)
            style = "-."
        if None in baseline.accuracy_after(unit):
            level(axes, baseline.accuracy(unit), label, colour)
        else:
            line(axes, baseline.accuracy_after(unit), label, colour, linestyle=style, marker=marker)


def _published_points(
    axes: Axes, groups: Sequence[Group], unit: str, places: Sequence[float]
) -> None:
    """Draw the paper's number on the bar of its routing unit."""
    points = [
        (place, group.published)
        for place, group in zip(places, groups, strict=True)
        if group.published and group.published.unit == unit
    ]
    if points:
        axes.errorbar(
            [place for place, _ in points],
            [published.accuracy for _, published in points],
            [published.deviation for _, published in points],
            fmt="D",
            color=PURPLE,
            markeredgecolor="#ffffff",
            markersize=8,
            capsize=3,
            zorder=3,
            label=f"paper ({unit})",
        )


def _scaled_rows(scores: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    raw = np.asarray(scores, dtype=np.float64)
    low, high = raw.min(1, keepdims=True), raw.max(1, keepdims=True)
    spread: NDArray[np.float64] = np.where(high > low, high - low, 1.0)
    scaled: NDArray[np.float64] = (raw - low) / spread
    return scaled


def _unit_look(unit: str, group: Group) -> tuple[str, str]:
    """Return colour and marker: in every figure, samples are blue and tasks are vermilion."""
    if unit == "sample":
        return BLUE, "o"
    if unit == "task":
        return VERMILION, "s"
    between = [name for name in group.units if name not in ("sample", "task")]
    place = between.index(unit)
    return (SKY, GREEN, ORANGE)[place % 3], ("^", "D", "P")[place % 3]


def _task_names(group: Group) -> list[str] | None:
    """Return short names of the tasks, if they are the same for every seed."""
    names = [[task.name for task in result.tasks] for result in group.model.results]
    if any(other != names[0] for other in names):
        return None
    return [f"{i}  {shorten(name, 16)}" for i, name in enumerate(names[0], start=1)]


def _task_ticks(number: int) -> list[int]:
    """Return all tasks if there are few, else the first and every fifth or tenth."""
    step = 1 if number <= ANNOTATED_TASKS else 5 if number <= 25 else max(10, number // 100 * 10)
    return sorted({0, *range(step - 1, number, step)})


def _parameters(value: float, _position: int | None = None) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"
