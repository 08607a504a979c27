"""The footprint chart: parameters that methods keep, beside the numbers that the paper prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from remembering.experiments.published import FOOTPRINTS, is_cifar10_5
from remembering.report.comparison import Comparison
from remembering.report.figure import (
    BLUE,
    GREY,
    ORANGE,
    STYLE,
    WIDTH,
    Plot,
    canvas,
    decades,
    text_width,
    wrap,
)
from remembering.report.groups import Group
from remembering.report.table import size
from remembering.report.tables import total_size

_SIZE, _WIDEST, _VALUE = 9.5, 112.0, 44.0
"""Font size, largest width of a name, and width of a column of values."""
PAPER = (
    "Grey: trainable parameters that the paper prints for CIFAR10/5, with other backbones "
    "(Table 2 and Section 4.2)."
)


@dataclass(frozen=True)
class Footprints:
    """Two numbers of parameters of a model or method: what the paper counts, and everything."""

    name: str
    counted: float
    kept: float


def footprint_of_runs(groups: Sequence[Group]) -> Plot | None:
    """Draw the adapters of models, the paper's number, and everything that they keep.

    None if there is a single model, and no number of the paper beside it.
    """
    rows = [
        Footprints(
            f"{group.title}, {group.backbone}",
            group.first.footprint.adapters,
            group.first.footprint.parameters,
        )
        for group in groups
    ]
    numbers = "; ".join(f"{group.title} {total_size(group)}" for group in groups)
    return _chart(
        "Memory footprint of the models",
        rows,
        ("adapters", "everything"),
        "Parameters that each model keeps: its adapters alone, which the paper counts, and "
        "everything (adapters, heads, routers; without replay images).",
        f"Everything: {numbers}.",
        beside=any(is_cifar10_5(group.experiment) for group in groups),
    )


def footprint_of_methods(comparison: Comparison) -> Plot | None:
    """Draw the parameters that methods train, which the paper counts, and those that they keep.

    None if there is a single method, and no number of the paper beside it.
    """
    first = {row.seeds.method: row for row in comparison.rows}
    rows = [
        Footprints(
            row.first.method.title,
            row.seeds.number(lambda result: result.footprint.trained),
            row.seeds.number(lambda result: result.footprint.parameters),
        )
        for row in first.values()
    ]
    return _chart(
        f"{comparison.title}: memory footprint of the methods",
        rows,
        ("trained", "kept"),
        "Parameters that gradient descent changes, which the paper counts, and parameters that a "
        "method keeps besides the frozen backbone, without replay images.",
        "; ".join(f"{row.name}: {size(row.counted)} trained, {size(row.kept)} kept" for row in rows)
        + ".",
        beside=is_cifar10_5(comparison.experiment),
    )


def _chart(
    title: str,
    rows: Sequence[Footprints],
    names: tuple[str, str],
    caption: str,
    numbers: str,
    *,
    beside: bool,
) -> Plot | None:
    printed = FOOTPRINTS if beside else ()
    if len(printed) + len(rows) < 2:
        return None
    labels = [
        *([f"Paper: {item.method}"] for item in printed),
        *(wrap(row.name, _WIDEST, _SIZE) for row in rows),
    ]
    paper = [item.millions * 1e6 for item in printed]
    columns = [([0.0] * len(paper) + [getattr(row, key) for row in rows]) for key in _COLUMNS]
    columns.append(paper + [0.0] * len(rows))
    left = 16 + max(text_width(line, _SIZE) for label in labels for line in label)
    with mpl.rc_context(STYLE):
        height = 25.0 * len(labels)
        fig, axes = canvas(title, "", height=height, left=left, right=2 * _VALUE + 14, bottom=58)
        total = fig.get_figheight() * 72
        looks = ((BLUE, "o", names[0]), (ORANGE, "s", names[1]), (GREY, "D", "paper, CIFAR10/5"))
        for k, (values, (colour, marker, name)) in enumerate(zip(columns, looks, strict=True)):
            # A logarithmic axis cannot show the 0 of a method that trains nothing.
            shown = [(value, y) for y, value in enumerate(values) if value > 0]
            if shown:
                axes.plot(
                    *zip(*shown, strict=True),
                    marker,
                    color=colour,
                    markersize=9 if k == 1 else 6.5,
                    markerfacecolor="none" if k == 1 else colour,
                    markeredgewidth=1.6 if k == 1 else 1,
                    label=name,
                )
            for y, value in enumerate(values):
                is_paper = y < len(paper)
                if is_paper != (k == 2):
                    continue
                place = WIDTH - 8 - (_VALUE if k != 1 else 0)
                base = 58 + height * (1 - (y + 0.5) / len(labels)) - 3.3
                fig.text(
                    place / WIDTH,
                    base / total,
                    size(value),
                    color=colour,
                    fontsize=_SIZE,
                    ha="right",
                )
        axes.set_yticks(range(len(labels)), labels=["\n".join(label) for label in labels])
        axes.tick_params(axis="y", length=0, labelsize=_SIZE)
        axes.set(xscale="log", ylim=(len(labels) - 0.5, -0.5), xlabel="Parameters (log scale)")
        everything = [value for column in columns for value in column if value > 0]
        axes.set_xlim(*decades(everything))
        axes.xaxis.set_major_locator(LogLocator(numticks=4))
        axes.xaxis.set_major_formatter(FuncFormatter(_parameters))
        axes.xaxis.set_minor_locator(NullLocator())
        fig.legend(
            *axes.get_legend_handles_labels(),
            loc="lower center",
            ncols=3,
            columnspacing=1.2,
            handletextpad=0.2,
        )
    return Plot(fig, title, f"{caption} {PAPER}" if beside else caption, numbers)


_COLUMNS = ("counted", "kept")


def _parameters(value: float, _position: int | None = None) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"
