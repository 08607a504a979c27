"""Figures of experiments.

Importing this module imports matplotlib: do it where a plot is drawn, not where a command starts.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes

from remembering.errors import RememberingError
from remembering.report.curves import Curve, Look, draw_curves
from remembering.report.figure import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    STYLE,
    Plot,
    canvas,
    deviations,
    means,
    text_width,
    wrap,
)
from remembering.report.groups import Group, Seeds, Statistic
from remembering.report.looks import ABLATED, ORACLE, method_look, unit_look
from remembering.report.table import percent
from remembering.report.tables import oracle

BESIDE = ("joint", "fetril", "ssre")
"""Methods in the paper's accuracy curves, by the beginning of their names."""


def accuracy_curves(group: Group, name: str | None = None) -> Plot:
    """Draw the accuracy by routing unit, with the correct adapter given and routing ablated.

    The other methods of the paper's figure are drawn if they were run, above all joint training,
    its oracle.

    Args:
        group: The results.
        name: Begins the title, instead of the name of the experiment.
    """
    curves = [
        Curve(unit, group.model.accuracy_after(unit), _unit_look(unit, group))
        for unit in group.units
    ]
    curves += [
        Curve("correct adapter given", group.curve(lambda r: r.oracle_after), ORACLE),
        Curve("routing ablated", group.curve(lambda r: r.ablated_after), ABLATED),
    ]
    curves += [
        _baseline(baseline, "sample", place)
        for place, baseline in enumerate(group.baselines)
        if baseline.method.startswith(BESIDE)
    ]
    title = f"{name or group.title}: accuracy by routing unit"
    return Plot(
        draw_curves(title, group.short_settings, curves),
        title,
        "Mean accuracy over the tasks learned so far, after each task, by routing unit; with the "
        "correct adapter given; and without a router (ablated), where the most confident adapter "
        f"answers.{_bands(group)}",
        f"After the last task: {by_unit(group)}; correct adapter given "
        f"{percent(group.statistic(oracle), len(group.seeds))} %.",
    )


def baseline_curves(group: Group) -> Plot | None:
    """Draw the accuracy of the model beside that of the baselines; None if there are none."""
    if not group.baselines or "sample" not in group.units:
        return None
    model = Curve(
        "this model", group.model.accuracy_after("sample"), method_look(group.model.method)
    )
    others = [
        _baseline(baseline, unit, place)
        for place, baseline in enumerate(group.baselines)
        for unit in baseline.units
    ]
    title = f"{group.title}: accuracy beside other methods"
    ends = "; ".join(
        f"{baseline.first.method.title} {percent(baseline.accuracy(), len(group.seeds))} %"
        for baseline in group.baselines
    )
    return Plot(
        draw_curves(title, group.short_settings, [model, *others]),
        title,
        "Mean accuracy over the tasks learned so far, after each task, on single images unless "
        "another routing unit is named. Methods that were evaluated after the last task only are "
        f"single points.{_bands(group)}",
        f"After the last task: this model {percent(group.model.accuracy(), len(group.seeds))} %; "
        f"{ends}.",
    )


def novelty_curves(group: Group) -> Plot:
    """Draw how well images of tasks to come are detected, and false alarms on learned tasks."""
    rate = group.routing[0].novelty.rate
    auroc = group.curve(lambda routing: routing.novelty.auroc)
    alarms = group.curve(lambda routing: routing.novelty.false_alarms)
    target = (Statistic(rate, None, 1),) * group.task_count
    curves = [
        Curve("AUROC × 100, new against learned", auroc, Look(GREEN, "s", "-", 2.0)),
        Curve("false alarms", alarms, Look(ORANGE, "v", "-", 2.0)),
        Curve("requested", target, Look(INK, "none", (0, (1, 1.4)), 1.0)),
    ]
    title = f"{group.title}: novelty detection"
    return Plot(
        draw_curves(title, group.short_settings, curves, "%"),
        title,
        "Novelty detection after each task: how well test images of tasks to come are "
        f"separated from those of learned tasks, and how many of these are flagged.{_bands(group)}",
    )


def variant_dots(groups: Sequence[Group]) -> Plot:
    """Draw the variants of one experiment (capacity E, replay memory M), one row each.

    Raises:
        RememberingError: If there are none.
    """
    if not groups:
        raise RememberingError("there are no variants to compare; give at least one group")
    shared = [unit for unit in groups[0].units if all(unit in group.units for group in groups)]
    series: list[tuple[str, list[Statistic | None], Look]] = [
        (unit, [g.model.accuracy(unit) for g in groups], _unit_look(unit, groups[0]))
        for unit in shared
    ]
    given = [group.statistic(oracle) for group in groups]
    series.append(("correct adapter given", given, ORACLE))
    names = [wrap(group.variant or "default", 110, 10, lines=2) for group in groups]
    title = f"{groups[0].experiment}: accuracy by variant"
    settings = " | ".join(dict.fromkeys(group.short_settings for group in groups))
    rows = (len(series) + 2) // 2
    with mpl.rc_context(STYLE):
        fig, axes = canvas(
            title,
            settings,
            height=30.0 * len(groups) + 10,
            left=14 + max(text_width(line, 10) for name in names for line in name),
            right=16,
            bottom=40 + 16 * rows,
        )
        for label, values, look in series:
            axes.errorbar(
                means(values),
                range(len(groups)),
                xerr=deviations(values) if deviations(values).any() else None,
                fmt=look.marker,
                color=look.colour,
                markersize=8,
                capsize=2,
                label=label,
                clip_on=False,
            )
            _published_points(axes, groups, label)
        axes.set_yticks(range(len(groups)), labels=["\n".join(name) for name in names])
        axes.tick_params(axis="y", length=0)
        axes.set(xlabel="Accuracy (%)", xlim=(0, 100), ylim=(len(groups) - 0.5, -0.5))
        fig.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=2)
    ends = "; ".join(f"{group.variant or 'default'}: {by_unit(group)}" for group in groups)
    return Plot(
        fig,
        title,
        "Accuracy by variant and routing unit, after the last task. Open diamonds: the paper's "
        "numbers, with its own backbone.",
        f"{ends}.",
    )


def by_unit(group: Group) -> str:
    """Return the accuracy after the last task by routing unit, as text."""
    return ", ".join(
        f"{unit} {percent(group.model.accuracy(unit), len(group.seeds))} %" for unit in group.units
    )


def _baseline(baseline: Seeds, unit: str, place: int = 0) -> Curve:
    label = baseline.first.method.title + ("" if unit == "sample" else f" ({unit})")
    look = method_look(baseline.method, unit, place)
    return Curve(label, baseline.accuracy_after(unit), look)


def _published_points(axes: Axes, groups: Sequence[Group], unit: str) -> None:
    """Draw the paper's number in the row of its variant."""
    points = [
        (place, group.published)
        for place, group in enumerate(groups)
        if group.published and group.published.unit == unit
    ]
    if points:
        axes.errorbar(
            [published.accuracy for _, published in points],
            [place for place, _ in points],
            xerr=[published.deviation for _, published in points],
            fmt="D",
            color=BLUE,
            markerfacecolor="none",
            markersize=10,
            capsize=3,
            zorder=3,
            label=f"paper ({unit})",
        )


def _unit_look(unit: str, group: Group) -> Look:
    between = [name for name in group.units if name not in ("sample", "task")]
    return unit_look(unit, between.index(unit) if unit in between else 0)


def _bands(group: Group) -> str:
    return " Bands are ± one standard deviation over seeds." if len(group.seeds) > 1 else ""
