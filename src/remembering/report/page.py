"""One HTML page with all results: no scripts, no requests.

All text is escaped by the template or by `Table.to_html`: names of tasks and classes come from
users' folders and may contain anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import tomli_w
from markupsafe import Markup
from matplotlib.figure import Figure

from remembering import schema
from remembering.report import figure, plots
from remembering.report.collect import collect
from remembering.report.comparison import Comparison, comparison_table, methods_table
from remembering.report.comparison_plots import cost_chart, method_curves, spread_text
from remembering.report.groups import Group, Statistic, count, no_results, seed_list
from remembering.report.table import Table, percent
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
class Plot:
    """A figure of the page, inline, with a description for readers who cannot see it."""

    name: str
    caption: str
    drawing: Markup


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
    footprint = _footprint(groups, drawer) if groups else None
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
        runs=count(results, "run"),
        summary=_html(summary_table(groups)) if len(groups) > 1 else None,
        footprint=footprint,
        commands=list(dict.fromkeys(item.command for item in shown)),
    )
    path = out / FILE_NAME
    write_atomic(path, page.encode("utf-8"))
    return path


class _Drawer:
    """Saves figures under unique names and prepares them for the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: set[str] = set(ANCHORS)

    def draw(self, drawn: Figure, name: str, caption: str, numbers: str = "") -> Plot:
        """Save a figure; `numbers` describes it for readers who cannot see it."""
        name = self.unique(name)
        figure.save(drawn, self.folder, name)
        drawing = inline_svg(
            figure.svg(drawn, transparent=True), name, f"{caption} {numbers}".strip()
        )
        return Plot(name, caption, drawing)

    def unique(self, name: str) -> str:
        number, candidate = 2, name
        while candidate in self.names:
            number, candidate = number + 1, f"{name}-{number}"
        self.names.add(candidate)
        return candidate


def inline_svg(svg: str, prefix: str, description: str) -> Markup:
    """Return an SVG document as part of a page: unique ids, description, the page's colours."""
    drawing = svg[svg.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", drawing)
    drawing = drawing.replace(figure.INK, "currentColor").replace(figure.GRID, "var(--grid)")
    drawing = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawing, count=1)
    drawing = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawing, count=1)
    label = escape(description)
    return Markup(drawing.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))


def _footprint(groups: list[Group], drawer: _Drawer) -> Plot:
    return drawer.draw(
        plots.footprint_chart(groups),
        "footprint",
        "Parameters that each model keeps: its adapters alone, the paper's number, and everything "
        "(adapters, heads, routers; the replay memory in bytes). Grey: trainable parameters that "
        "the paper prints for CIFAR10/5 with other backbones.",
    )


def _comparison(comparison: Comparison, drawer: _Drawer) -> dict[str, Any]:
    name = drawer.unique(comparison.slug)
    numbers = spread_text(comparison)
    return {
        "anchor": name,
        "title": f"{comparison.title}: comparison of methods",
        "description": comparison.description,
        "settings": comparison.settings,
        "table": _html(comparison_table(comparison)),
        "plots": [
            drawer.draw(
                method_curves(comparison),
                f"{name}-accuracy",
                "Mean accuracy over the tasks learned so far, after each task."
                + _bands(comparison.seeds),
                numbers,
            ),
            drawer.draw(
                cost_chart(comparison),
                f"{name}-cost",
                "Accuracy after the last task against everything that a method keeps besides the "
                "frozen backbone, including stored images.",
                numbers,
            ),
        ],
        "methods": _html(methods_table(comparison)),
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


def _variants(groups: list[Group], drawer: _Drawer) -> Plot | None:
    """Draw the largest set of variants that share size and backbone."""
    families = [
        list(members)
        for _, members in groupby(groups, key=lambda group: (group.small, group.backbone))
    ]
    family = max(families, key=len)
    if len(family) < 2:
        return None
    ends = "; ".join(f"{group.variant or 'default'}: {_by_unit(group)}" for group in family)
    return drawer.draw(
        plots.variant_bars(family),
        f"{family[0].slug}-variants",
        "Accuracy by variant and routing unit, after the last task. Diamonds: the paper's numbers, "
        "with its own backbone.",
        f"{ends}.",
    )


def _section(group: Group, drawer: _Drawer) -> dict[str, Any]:
    name, bands = drawer.unique(group.slug), _bands(group.seeds)
    seeds = " Seeds are averaged after scaling." if len(group.seeds) > 1 else ""
    score = group.routers[0].score_name.capitalize()
    drawn = [
        drawer.draw(
            plots.accuracy_curves(group),
            f"{name}-accuracy",
            "Mean accuracy over the tasks learned so far, after each task, by routing unit and of "
            f"baselines.{bands}",
            f"After the last task: {_by_unit(group)}; correct adapter given "
            f"{_percent(group.statistic(oracle), group)}.",
        ),
        drawer.draw(
            plots.score_heatmap(group),
            f"{name}-router-scores",
            f"{score} under the expert of each task (columns) of the test images of each task "
            "(rows). Means, scaled to 0–1 in each row; the whole task is routed to the darkest "
            f"cell of its row.{seeds}",
        ),
        drawer.draw(
            plots.novelty_curves(group),
            f"{name}-novelty",
            "Novelty detection after each task: how well test images of tasks to come are "
            f"separated from those of learned tasks, and how many of these are flagged.{bands}",
        ),
    ]
    return {
        "anchor": name,
        "group": group,
        "headline": _headline(group),
        "units": _html(replace(units_table(group), caption=f"{group.title}: by routing unit")),
        "plots": drawn,
        "novelty": _html(novelty_table(group)),
        "tasks": _html(tasks_table(group)),
        "configuration": tomli_w.dumps(schema.write(group.first.config)),
        "seeds": seed_list(group.seeds),
        "environment": _environment(group),
    }


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
    ]


def _by_unit(group: Group) -> str:
    return ", ".join(
        f"{unit} {_percent(group.model.accuracy(unit), group)}" for unit in group.units
    )


def _percent(value: Statistic | None, group: Group) -> str:
    return f"{percent(value, len(group.seeds))} %"


def _bands(seeds: Sequence[int]) -> str:
    return " Bands are ± one standard deviation over seeds." if len(seeds) > 1 else ""


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
