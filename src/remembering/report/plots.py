"""Results as figures. Colours are Okabe and Ito's, told apart by every kind of colour vision.

Figures are made without pyplot, so nothing global changes and no window opens. Importing this file
imports matplotlib: do it where a plot is drawn, not where a command starts.
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
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from remembering.errors import RememberingError
from remembering.report.published import FOOTPRINTS
from remembering.report.results import Group, Statistic
from remembering.report.tables import BASELINE_NAMES, kept, size
from remembering.runtime.files import write_atomic

INK = "#24292f"
"""Text and axes. The page replaces exactly this colour, to follow light and dark."""
GRID = "#d8dee4"
"""Grid lines, replaced likewise."""

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#8c959f",
)
ANNOTATED_TASKS = 10
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


def accuracy_curves(group: Group) -> Figure:
    """Mean accuracy over the tasks seen so far, after each task; bands are ± one deviation."""
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(6.6, 5.4))
        axes = fig.subplots()
        for unit in group.units:
            colour, marker = _unit_look(unit, group)
            line(axes, group.curve("accuracy_after", unit), unit, colour, marker=marker)
        line(axes, group.curve("oracle_after"), "right adapter given", INK, linestyle=(0, (5, 2)))
        line(axes, group.curve("ablated_after"), "routing ablated", PURPLE, linestyle=(0, (1, 1)))
        if group.compared:
            for unit in (unit for unit in group.units if unit in ("sample", "task")):
                curve = group.curve("compared", "accuracy_after", unit)
                colour, marker = _unit_look(unit, group)
                label = f"{unit}, {group.compared} router"
                line(axes, curve, label, colour, marker=marker, linestyle=(0, (3, 1, 1, 1)))
        for name, colour in zip(group.baselines, _baseline_colours(group), strict=True):
            label = BASELINE_NAMES.get(name, name)
            if name in ("joint", "gaussian"):
                level(axes, group.statistic("baselines", name, "accuracy"), label, colour)
            else:
                curve = group.curve("baselines", name, "accuracy_after")
                line(axes, curve, label, colour, linestyle="--", marker="v")
        _title(fig, axes, f"{group.title}: accuracy after each task", [group])
        axes.set(
            xlabel="Tasks learned",
            ylabel="Accuracy (%)",
            ylim=(0, 102),
        )
        axes.set_xlim(0.8, max(group.task_count, 2) + 0.2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        fig.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return fig


def reconstruction_heatmap(group: Group) -> Figure:
    """How well the generative model of each task rebuilds the images of each other task.

    As in the paper's figure, losses are scaled to 0..1: here each row (the images of one task) by
    itself, because the row's smallest value is what routes. Seeds are averaged after scaling.
    """
    if not has_reconstruction_errors(group):
        raise RememberingError(
            f"{group.title} has no reconstruction errors to draw; "
            "run it with a router that scores inputs"
        )
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        errors = np.mean([_scaled_rows(run["reconstruction_errors"]) for run in group.results], 0)
        rows, columns = errors.shape
        side = float(np.clip(0.52 * rows + 2, 3.6, 6.6))
        fig = Figure(figsize=(side + 1.7, side))
        axes = fig.subplots()
        image = axes.imshow(
            errors, cmap="cividis", vmin=0, vmax=1, interpolation="none", aspect="equal"
        )
        bar = fig.colorbar(image, ax=axes, shrink=0.8, label=f"{score_name(group)}, 0–1 per row")
        bar.outline.set_visible(False)
        axes.spines[:].set_visible(False)
        axes.set(
            title=line_break(f"{group.title}: {score_name(group).lower()}s", 40),
            xlabel="Generative model of task",
            ylabel="Test images of task",
        )
        for axis, number in ((axes.xaxis, columns), (axes.yaxis, rows)):
            places = _task_ticks(number)
            axis.set_ticks(places, labels=[str(place + 1) for place in places])
        if rows <= ANNOTATED_TASKS:
            names = _task_names(group)
            if names:
                axes.set_yticks(range(rows), labels=names)
            for (i, j), value in np.ndenumerate(errors):
                colour = "#ffffff" if value < 0.55 else "#111111"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
        return fig


def novelty_curves(group: Group) -> Figure:
    """How well images of tasks to come are told from learned ones, and false alarms on those."""
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(6.6, 4.2))
        axes = fig.subplots()
        line(axes, group.curve("novelty", "auroc"), "AUROC, to come or learned", BLUE)
        rate = group.first["novelty"]["rate"]
        alarms = group.curve("novelty", "false_alarms")
        line(axes, alarms, f"false alarms, {rate:.0%} asked", ORANGE, marker="v")
        axes.axhline(100 * rate, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        _title(fig, axes, f"{group.title}: have I seen this before?", [group])
        axes.set(xlabel="Tasks learned", ylabel="%", ylim=(0, 102))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
        fig.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=1)
        return fig


def footprint_chart(groups: Sequence[Group]) -> Figure:
    """Parameters kept by these runs, beside the numbers that the paper prints for CIFAR10/5."""
    paper = [
        (item.method, item.millions * 1e6, f"{item.millions:.2f}M ({item.where})")
        for item in FOOTPRINTS
    ]
    labels = [f"Paper: {method}" for method, _, _ in paper]
    labels += [f"{shorten(group.title, 34)}\n{shorten(group.backbone, 34)}" for group in groups]
    footprints = [group.first["footprint"] for group in groups]
    adapters = [footprint["adapters"] for footprint in footprints]
    total = [footprint["total_parameters"] for footprint in footprints]
    sizes = [*(parameters for _, parameters, _ in paper), *adapters, *total]
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(7.4, 1.9 + 0.28 * len(paper) + 0.56 * len(groups)))
        axes = fig.subplots()
        # A pair of bars takes twice the height of one of the paper's bars.
        pairs = np.array([len(paper) + 0.5 + 2 * i for i in range(len(groups))])
        for places, widths, texts, colour, label in (
            (
                range(len(paper)),
                [p[1] for p in paper],
                [p[2] for p in paper],
                GREY,
                "paper, CIFAR10/5",
            ),
            (pairs - 0.4, adapters, [size(n) for n in adapters], BLUE, "adapters only"),
            (pairs + 0.4, total, [kept(g) for g in groups], ORANGE, "everything kept"),
        ):
            # An experiment without adapters has nothing to show on a logarithmic axis.
            shown = [max(width, 1) for width in widths]
            bars = axes.barh(places, shown, color=colour, height=0.72, label=label)
            axes.bar_label(bars, texts, padding=4, fontsize=9)
        axes.set_yticks([*range(len(paper)), *pairs], labels=labels)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlim(10 ** np.floor(np.log10(max(min(sizes), 1)) - 0.3), max(sizes) * 30)
        axes.xaxis.set_major_formatter(FuncFormatter(_parameters))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="y", visible=False)
        axes.set(title="Memory footprint", xlabel="Parameters (logarithmic scale)")
        fig.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return fig


def variant_bars(groups: Sequence[Group]) -> Figure:
    """Variants of one experiment (capacity E, replay memory M) side by side, with the paper's."""
    if not groups:
        raise RememberingError("there are no variants to compare; give at least one group")
    shared = [unit for unit in groups[0].units if all(unit in group.units for group in groups)]
    series: list[tuple[str, list[Statistic | None], str]] = [
        (unit, [g.statistic("accuracy", unit) for g in groups], _unit_look(unit, groups[0])[0])
        for unit in shared
    ]
    given = [group.statistic("oracle_task_accuracy") for group in groups]
    series.append(("right adapter given", given, GREY))
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(6.6, 4.6))
        axes = fig.subplots()
        width = 0.8 / len(series)
        for k, (label, values, colour) in enumerate(series):
            places = [i + (k - (len(series) - 1) / 2) * width for i in range(len(groups))]
            axes.bar(places, _means(values), width * 0.92, color=colour, label=label)
            spread = _deviations(values)
            if spread.any():
                axes.errorbar(
                    places, _means(values), spread, fmt="none", ecolor=INK, capsize=2, lw=1.2
                )
            _published_points(axes, groups, label, places)
        axes.set_xticks(range(len(groups)), labels=[_variant_name(group) for group in groups])
        axes.grid(axis="x", visible=False)
        _title(fig, axes, f"{groups[0].experiment}: accuracy by variant", groups)
        axes.set(ylabel="Accuracy (%)", ylim=(0, 105))
        fig.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return fig


def score_name(group: Group) -> str:
    """What the router compares. Only a model that rebuilds its input has a reconstruction error."""
    kind = group.compared or group.first["router"]["kind"]
    rebuilds = kind in ("autoencoder", "subspace")
    return "Reconstruction error" if rebuilds else "Router score"


def has_reconstruction_errors(group: Group) -> bool:
    """Whether every seed has a table of reconstruction errors of one shape."""
    shapes = {np.shape(run["reconstruction_errors"]) for run in group.results}
    return len(shapes) == 1 and len(next(iter(shapes))) == 2


def svg(fig: Figure, *, transparent: bool = False) -> str:
    """The figure as SVG text, the same bytes every time."""
    return _rendered(fig, "svg", transparent, {"Date": None, "Creator": None}).decode("utf-8")


def save(fig: Figure, folder: str | Path, name: str) -> tuple[Path, Path]:
    """Write `name`.png and `name`.svg into the folder; equal results give equal bytes."""
    png_path, svg_path = (Path(folder) / f"{name}.{kind}" for kind in ("png", "svg"))
    write_atomic(png_path, _rendered(fig, "png", False, {"Software": None}))
    write_atomic(svg_path, svg(fig).encode("utf-8"))
    return png_path, svg_path


def _rendered(fig: Figure, kind: str, transparent: bool, metadata: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    with mpl.rc_context(STYLE):
        fig.savefig(content, format=kind, dpi=160, transparent=transparent, metadata=metadata)
    return content.getvalue()


def _title(fig: Figure, axes: Axes, title: str, groups: Sequence[Group]) -> None:
    """A figure is shown far from its table, so it says itself what its accuracies are of."""
    settings = " | ".join(dict.fromkeys(group.short_settings for group in groups))
    fig.suptitle(line_break(title), fontsize=12, fontweight="bold", color=INK)
    axes.set_title(line_break(settings, 80), fontsize=9, fontweight="normal")


def line(
    axes: Axes, curve: Sequence[Statistic | None], label: str, colour: str, **look: Any
) -> None:
    if not curve:
        return
    x = np.arange(1, len(curve) + 1)
    mean, spread = _means(curve), _deviations(curve)
    look.setdefault("marker", "o" if len(curve) == 1 else None)
    axes.plot(x, mean, label=legend_text(label), color=colour, **look)
    if spread.any():
        axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.16, linewidth=0)


def level(axes: Axes, value: Statistic | None, label: str, colour: str) -> None:
    """A method that learns everything at once has one accuracy: a horizontal line."""
    if value is None:
        return
    mean, spread = 100 * value.mean, 100 * (value.deviation or 0)
    axes.axhline(mean, color=colour, linestyle="-.", linewidth=1.6, label=legend_text(label))
    if spread:
        axes.axhspan(mean - spread, mean + spread, color=colour, alpha=0.12, linewidth=0)


def _published_points(
    axes: Axes, groups: Sequence[Group], unit: str, places: Sequence[float]
) -> None:
    """The paper's number on the bar of the unit that it was reached with."""
    points = [
        (place, group.published)
        for place, group in zip(places, groups, strict=True)
        if group.published and group.published["unit"] == unit
    ]
    if points:
        axes.errorbar(
            [place for place, _ in points],
            [published["accuracy"] for _, published in points],
            [published["deviation"] or 0 for _, published in points],
            fmt="D",
            color=PURPLE,
            markeredgecolor="#ffffff",
            markersize=8,
            capsize=3,
            zorder=3,
            label=f"paper ({unit})",
        )


def _means(values: Sequence[Statistic | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else 100 * value.mean for value in values])


def _deviations(values: Sequence[Statistic | None]) -> NDArray[np.float64]:
    return np.array(
        [0.0 if v is None or v.deviation is None else 100 * v.deviation for v in values]
    )


def _scaled_rows(errors: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    raw = np.asarray(errors, dtype=np.float64)
    low, high = raw.min(1, keepdims=True), raw.max(1, keepdims=True)
    spread: NDArray[np.float64] = np.where(high > low, high - low, 1.0)
    scaled: NDArray[np.float64] = (raw - low) / spread
    return scaled


def _unit_look(unit: str, group: Group) -> tuple[str, str]:
    """The single image is blue and the whole task vermilion in every figure; groups lie between."""
    if unit == "sample":
        return BLUE, "o"
    if unit == "task":
        return VERMILION, "s"
    between = [name for name in group.units if name not in ("sample", "task")]
    place = between.index(unit)
    return (SKY, GREEN, ORANGE)[place % 3], ("^", "D", "P")[place % 3]


def _baseline_colours(group: Group) -> list[str]:
    named = {"joint": ORANGE, "finetune": GREY}
    return [named.get(name, GREY) for name in group.baselines]


def _task_names(group: Group) -> list[str] | None:
    """Names for the rows, if they are short and mean the same under every seed."""
    names = [[task["name"] for task in run["tasks"]] for run in group.results]
    if any(other != names[0] for other in names):
        return None
    return [f"{i}  {shorten(name, 16)}" for i, name in enumerate(names[0], start=1)]


def _task_ticks(number: int) -> list[int]:
    """Every task while there is room, then the first and the round ones."""
    step = 1 if number <= ANNOTATED_TASKS else 5 if number <= 25 else max(10, number // 100 * 10)
    return sorted({0, *range(step - 1, number, step)})


def _variant_name(group: Group) -> str:
    return shorten(group.variant or "default", 18)


def shorten(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def line_break(text: str, length: int = 64) -> str:
    """Long titles get a second line instead of running out of the figure."""
    words = shorten(text, 2 * length).split()
    first = ""
    while words and len(first) + len(words[0]) < length:
        first = f"{first} {words.pop(0)}".strip()
    return "\n".join(part for part in (first, " ".join(words)) if part)


def legend_text(label: str) -> str:
    """matplotlib leaves labels with a leading underscore out of the legend."""
    return shorten(label, 30).lstrip("_")


def _parameters(value: float, _position: int | None = None) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"
