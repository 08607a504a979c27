"""One HTML page with all results: no scripts, no requests.

All text is escaped by the template or by `Table.to_html`: names of tasks and classes come from
users' folders and may contain anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import tomli_w
from markupsafe import Markup

from remembering import schema
from remembering.report import matrices, plots
from remembering.report.collect import collect
from remembering.report.comparison import (
    Comparison,
    comparison_table,
    cost_table,
    methods_table,
)
from remembering.report.comparison_plots import cost_chart, method_curves
from remembering.report.figure import Plot, dark_mode
from remembering.report.footprint import footprint_of_methods, footprint_of_runs
from remembering.report.groups import Group, Seeds, Statistic, count, no_results, seed_list, slug
from remembering.report.table import Table, bytes_text, percent
from remembering.report.tables import (
    novelty_table,
    oracle,
    published_table,
    summary_table,
    tasks_table,
    units_table,
)
from remembering.report.templates import render
from remembering.runtime.files import write_atomic

FILE_NAME = "report.html"
ANCHORS = ("reading", "rerun")
"""Ids that the template itself uses."""


@dataclass(frozen=True)
class Drawing:
    """A figure of the page, inline, under a unique name."""

    name: str
    caption: str
    drawing: Markup

    @classmethod
    def of(cls, plot: Plot, name: str) -> Drawing:
        """Return a plot for a page, which must have `dark_mode` in its style sheet."""
        return cls(name, plot.caption, Markup(plot.svg(name)))


def write_report(paths: Sequence[str | Path], out: str | Path) -> Path:
    """Write report.html, and its plots as PNG and SVG, into a folder.

    Args:
        paths: Folders of `remember run` and `remember compare`, or folders that contain them.
        out: The folder of the page.

    Returns:
        The page.

    Raises:
        RememberingError: If there are no results, or results that belong together differ.
    """
    groups, comparisons = collect(paths)
    if not groups and not comparisons:
        raise no_results(paths)
    out = Path(out)
    drawer = _Drawer(out)
    chart = footprint_of_runs(groups)
    chapters = [
        _chapter(experiment, list(members), drawer)
        for experiment, members in groupby(groups, key=lambda group: group.experiment)
    ]
    shown: list[Group | Comparison] = [*groups, *comparisons]
    results = sum(len(g.seeds) + sum(len(b.seeds) for b in g.baselines) for g in groups)
    for comparison in comparisons:
        compared = {(row.seeds.method, seed) for row in comparison.rows for seed in row.seeds.seeds}
        results += len(compared)
    page = render(
        "page.html.jinja",
        chapters=chapters,
        comparisons=[_comparison(comparison, drawer) for comparison in comparisons],
        title=", ".join(dict.fromkeys(item.experiment for item in shown)),
        dark_mode=Markup(dark_mode()),
        runs=count(results, "run"),
        summary=_html(summary_table(groups)) if len(groups) > 1 else None,
        footprint=drawer.draw(chart, "footprint") if chart else None,
        commands=list(dict.fromkeys(item.command for item in shown)),
    )
    path = out / FILE_NAME
    write_atomic(path, page.encode("utf-8", "backslashreplace"))
    return path


class _Drawer:
    """Saves figures under unique names and prepares them for the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: set[str] = set(ANCHORS)

    def draw(self, plot: Plot, name: str) -> Drawing:
        """Save a figure and return it for the page."""
        name = self.unique(name)
        plot.save(self.folder, name)
        return Drawing.of(plot, name)

    def unique(self, name: str) -> str:
        number, candidate = 2, name
        while candidate in self.names:
            number, candidate = number + 1, f"{name}-{number}"
        self.names.add(candidate)
        return candidate

    def matrices(self, title: str, settings: str, seeds: Seeds, name: str) -> list[Drawing]:
        """Draw the matrices of a method that its results contain."""
        drawn = {
            "accuracy-matrix": matrices.accuracy_matrix(title, settings, seeds),
            "confusion": matrices.confusion_matrix(title, settings, seeds),
            "router-scores": matrices.router_scores(title, settings, seeds),
        }
        return [self.draw(plot, f"{name}-{key}") for key, plot in drawn.items() if plot]


def _comparison(comparison: Comparison, drawer: _Drawer) -> dict[str, Any]:
    name = drawer.unique(comparison.slug)
    drawn = [
        drawer.draw(method_curves(comparison), f"{name}-accuracy"),
        drawer.draw(cost_chart(comparison), f"{name}-cost"),
    ]
    footprint = footprint_of_methods(comparison)
    if footprint:
        drawn.append(drawer.draw(footprint, f"{name}-footprint"))
    ours = comparison.ours
    if ours:
        title, settings = f"{comparison.title}, ours", comparison.short_settings
        drawn += drawer.matrices(title, settings, ours.seeds, f"{name}-ours")
    return {
        "anchor": name,
        "title": f"{comparison.title}: comparison of methods",
        "description": comparison.description,
        "settings": comparison.settings,
        "table": _html(replace(comparison_table(comparison), caption="Accuracy of the methods")),
        "cost": _html(replace(cost_table(comparison), caption="Cost of the methods")),
        "confusions": _confusions(ours.seeds) if ours else None,
        "plots": drawn,
        "methods": _html(replace(methods_table(comparison), caption="The methods")),
    }


def _chapter(experiment: str, groups: list[Group], drawer: _Drawer) -> dict[str, Any]:
    printed = published_table(experiment) if any(group.published for group in groups) else None
    return {
        "experiment": experiment,
        "descriptions": list(dict.fromkeys(group.description for group in groups)),
        "sections": [_section(group, drawer) for group in groups],
        "variants": _variants(groups, drawer),
        "published": _html(printed) if printed else None,
    }


def _variants(groups: list[Group], drawer: _Drawer) -> Drawing | None:
    """Draw the largest set of variants that share size and backbone."""
    families = [
        list(members)
        for _, members in groupby(groups, key=lambda group: (group.small, group.backbone))
    ]
    family = max(families, key=len)
    if len(family) < 2:
        return None
    return drawer.draw(plots.variant_dots(family), f"{family[0].slug}-variants")


def _section(group: Group, drawer: _Drawer) -> dict[str, Any]:
    name = drawer.unique(group.slug)
    drawn = [drawer.draw(plots.accuracy_curves(group), f"{name}-accuracy")]
    beside = plots.baseline_curves(group)
    if beside:
        drawn.append(drawer.draw(beside, f"{name}-methods"))
    drawn += drawer.matrices(group.title, group.short_settings, group.model, name)
    drawn.append(drawer.draw(plots.novelty_curves(group), f"{name}-novelty"))
    others = [
        drawing
        for baseline in group.baselines
        for drawing in drawer.matrices(
            f"{group.title}, {baseline.first.method.title}",
            group.short_settings,
            baseline,
            f"{name}-{slug(baseline.method)}",
        )
    ]
    return {
        "anchor": name,
        "title": f"{group.title}, {group.backbone}",
        "settings": group.settings,
        "headline": _headline(group),
        "units": _html(replace(units_table(group), caption="Accuracy by routing unit")),
        "plots": drawn,
        "others": others,
        "confusions": _confusions(group.model),
        "novelty": _html(replace(novelty_table(group), caption="Novelty detection")),
        "tasks": _html(replace(tasks_table(group), caption=f"Tasks, seed {group.first.seed}")),
        "configuration": tomli_w.dumps(schema.write(group.first.config)),
        "seeds": seed_list(group.seeds),
        "environment": _environment(group),
    }


def _confusions(seeds: Seeds) -> Markup | None:
    caption = "Test images, each alone, after the last task"
    table = matrices.Confusion.of(seeds).table(caption)
    return _html(table) if table.rows else None


def _headline(group: Group) -> list[tuple[str, str, str]]:
    """Return the most important numbers, each with its routing unit."""
    cards = {
        "sample": ("class-incremental accuracy", "sample: each image alone"),
        "task": ("accuracy by the paper's protocol", "task: one adapter per whole test set"),
    }
    shown = [
        (_percent(group.model.accuracy(unit), group), *texts)
        for unit, texts in cards.items()
        if unit in group.units
    ]
    return [
        *shown,
        (_percent(group.statistic(oracle), group), "correct adapter given", "without routing"),
        (bytes_text(group.first.footprint.bytes), "kept", "everything besides the backbone"),
    ]


def _percent(value: Statistic | None, group: Group) -> str:
    return f"{percent(value, len(group.seeds))} %"


def _environment(group: Group) -> list[tuple[str, str]]:
    results = group.model.results
    times = ", ".join(f"{result.seconds:.1f} s" for result in results)
    rows = [("time" if len(results) == 1 else "time per seed", times)]
    for key in dict.fromkeys(key for result in results for key in result.environment):
        values = (str(result.environment.get(key, "unknown")) for result in results)
        rows.append((key, ", ".join(dict.fromkeys(values))))
    hashes = dict.fromkeys(result.data_sha256 for result in results)
    return [*rows, ("data (SHA-256)", ", ".join(hashes))]


def _html(table: Table) -> Markup:
    return Markup(table.to_html())
