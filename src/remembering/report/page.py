"""One page that shows everything: no script, no request, works from a mail attachment.

Every text is escaped by the template or by `Table.to_html`: names of tasks and classes come from
users' folders and may contain anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import resources
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from remembering.report import plots
from remembering.report.comparison import (
    Comparison,
    comparison_table,
    load_all,
    methods_table,
)
from remembering.report.comparison_plots import cost_chart, method_curves, spread_text
from remembering.report.results import Group, count
from remembering.report.tables import (
    Table,
    novelty_table,
    percent,
    published_table,
    summary_table,
    tasks_table,
    units_table,
)
from remembering.runtime.files import write_atomic

FILE_NAME = "report.html"
ANCHORS = ("reading", "rerun")
"""Ids that the template itself uses."""


@dataclass(frozen=True)
class Plot:
    """A figure of the page: drawn inline, described for those who cannot see it."""

    name: str
    caption: str
    drawing: Markup


@dataclass(frozen=True)
class Section:
    """What the page tells about one group."""

    anchor: str
    group: Group
    headline: list[tuple[str, str, str]]
    units: Markup
    plots: list[Plot]
    novelty: Markup
    tasks: Markup
    configurations: list[tuple[str, str]]
    environment: list[tuple[str, str]]


@dataclass(frozen=True)
class Chapter:
    """The groups of one experiment, what it is, and what the paper prints for it."""

    experiment: str
    descriptions: list[str]
    sections: list[Section]
    variants: Plot | None
    published: Markup | None


@dataclass(frozen=True)
class Contest:
    """What the page tells about one comparison of methods."""

    anchor: str
    title: str
    description: str
    settings: str
    table: Markup
    plots: list[Plot]
    methods: Markup


def write_report(paths: Sequence[str | Path], out: str | Path) -> Path:
    """Write report.html and its plots as PNG and SVG into the folder `out`; returns the page.

    `paths` are run directories, folders of `remember compare`, or folders of them.
    """
    groups, comparisons = load_all(paths)
    out = Path(out)
    drawer = _Drawer(out)
    footprint = _footprint(groups, drawer) if groups else None
    contests = [_contest(comparison, drawer) for comparison in comparisons]
    chapters = [
        _chapter(experiment, list(members), drawer)
        for experiment, members in groupby(groups, key=lambda group: group.experiment)
    ]
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(
        resources.files("remembering.report").joinpath("page.html.jinja").read_text("utf-8")
    )
    page = template.render(
        chapters=chapters,
        contests=contests,
        title=", ".join(
            dict.fromkeys(
                [chapter.experiment for chapter in chapters]
                + [comparison.experiment for comparison in comparisons]
            )
        ),
        runs=count(
            sum(len(group.results) for group in groups)
            + sum(len(row.records) for item in comparisons for row in item.rows),
            "run",
        ),
        summary=_html(summary_table(groups)) if len(groups) > 1 else None,
        footprint=footprint,
        commands=list(
            dict.fromkeys(
                [group.command for group in groups]
                + [comparison.command for comparison in comparisons]
            )
        ),
    )
    path = out / FILE_NAME
    write_atomic(path, page.encode("utf-8"))
    return path


class _Drawer:
    """Saves figures under names that do not collide and makes them ready to stand in the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: set[str] = set(ANCHORS)

    def draw(self, figure: Figure, name: str, caption: str, numbers: str = "") -> Plot:
        """`numbers` is what the eye takes from the drawing, for those who cannot see it."""
        name = self.free(name)
        plots.save(figure, self.folder, name)
        drawing = inline_svg(
            plots.svg(figure, transparent=True), name, f"{caption} {numbers}".strip()
        )
        return Plot(name, caption, drawing)

    def free(self, name: str) -> str:
        number, free = 2, name
        while free in self.names:
            number, free = number + 1, f"{name}-{number}"
        self.names.add(free)
        return free


def inline_svg(svg: str, prefix: str, description: str) -> Markup:
    """An SVG document as part of a page: unique ids, described, in the page's own colours."""
    drawing = svg[svg.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", drawing)
    drawing = drawing.replace(plots.INK, "currentColor").replace(plots.GRID, "var(--grid)")
    drawing = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawing, count=1)
    drawing = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawing, count=1)
    label = escape(description)
    return Markup(drawing.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))


def _footprint(groups: list[Group], drawer: _Drawer) -> Plot:
    return drawer.draw(
        plots.footprint_chart(groups),
        "footprint",
        "Parameters that each run keeps: its adapters alone, as the paper counts, and everything "
        "that must be kept (adapters, heads, routers; the replay memory is given in bytes). Grey: "
        "trainable parameters that the paper prints for CIFAR10/5 with other backbones.",
    )


def _contest(comparison: Comparison, drawer: _Drawer) -> Contest:
    name = drawer.free(comparison.slug)
    band = " Bands are ± one deviation over seeds." if len(comparison.seeds) > 1 else ""
    numbers = spread_text(comparison)
    return Contest(
        anchor=name,
        title=f"{comparison.title}: methods compared",
        description=comparison.first["description"],
        settings=comparison.settings,
        table=_html(comparison_table(comparison)),
        plots=[
            drawer.draw(
                method_curves(comparison),
                f"{name}-accuracy",
                f"Mean accuracy over the tasks seen so far, after each task.{band}",
                numbers,
            ),
            drawer.draw(
                cost_chart(comparison),
                f"{name}-cost",
                "Accuracy after the last task against all that a method keeps beside the frozen "
                "backbone, stored images included.",
                numbers,
            ),
        ],
        methods=_html(methods_table(comparison)),
    )


def _chapter(experiment: str, groups: list[Group], drawer: _Drawer) -> Chapter:
    printed = published_table(experiment) if any(group.published for group in groups) else None
    return Chapter(
        experiment=experiment,
        descriptions=list(dict.fromkeys(group.description for group in groups)),
        sections=[_section(group, drawer) for group in groups],
        variants=_variants(groups, drawer),
        published=_html(printed) if printed else None,
    )


def _variants(groups: list[Group], drawer: _Drawer) -> Plot | None:
    """Bars for the largest set of variants that share size and backbone."""
    families = [
        list(members)
        for _, members in groupby(groups, key=lambda group: (group.small, group.backbone))
    ]
    family = max(families, key=len)
    if len(family) < 2:
        return None
    ends = "; ".join(
        f"{group.variant or 'default'}: "
        + ", ".join(f"{unit} {_number(group, 'accuracy', unit)}" for unit in group.units)
        for group in family
    )
    return drawer.draw(
        plots.variant_bars(family),
        f"{family[0].slug}-variants",
        "Accuracy by variant and routing unit, after the last task. Diamonds: what the paper "
        "prints, with its own backbone.",
        f"{ends}.",
    )


def _section(group: Group, drawer: _Drawer) -> Section:
    name = drawer.free(group.slug)
    ends = ", ".join(f"{unit} {_number(group, 'accuracy', unit)}" for unit in group.units)
    band = " Bands are ± one deviation over seeds." if len(group.seeds) > 1 else ""
    drawn = [
        drawer.draw(
            plots.accuracy_curves(group),
            f"{name}-accuracy",
            "Mean accuracy over the tasks seen so far, after each task, by routing unit and for "
            f"comparison.{band}",
            f"In the end: {ends}; right adapter given {_number(group, 'oracle_task_accuracy')}.",
        )
    ]
    if plots.has_reconstruction_errors(group):
        seeds = " Seeds are averaged after scaling." if len(group.seeds) > 1 else ""
        drawn.append(
            drawer.draw(
                plots.reconstruction_heatmap(group),
                f"{name}-reconstruction",
                f"{plots.score_name(group)} under each task's generative model (columns) on "
                "the test images of each task (rows). Raw means, scaled to 0–1 in each row; the "
                f"darkest cell of a row is where the whole task is routed.{seeds}",
            )
        )
    if group.first.get("novelty"):
        drawn.append(
            drawer.draw(
                plots.novelty_curves(group),
                f"{name}-novelty",
                "Novelty after each task: how well images of tasks that are still to come are told "
                f"from test images of learned ones, and how many of those are flagged.{band}",
            )
        )
    novelty = novelty_table(group)
    return Section(
        anchor=name,
        group=group,
        headline=_headline(group),
        units=_html(replace(units_table(group), caption=f"{group.title}: by routing unit")),
        plots=drawn,
        novelty=_html(novelty) if novelty else Markup(),
        tasks=_html(tasks_table(group)),
        configurations=_configurations(group),
        environment=_environment(group),
    )


def _headline(group: Group) -> list[tuple[str, str, str]]:
    """The few numbers to see first, each with the unit that makes it mean something."""
    cards = []
    if "sample" in group.units:
        cards.append(
            (
                _number(group, "accuracy", "sample"),
                "class-incremental accuracy",
                "sample: each image alone",
            )
        )
    if "task" in group.units:
        cards.append(
            (
                _number(group, "accuracy", "task"),
                "accuracy by the paper's protocol",
                "task: one adapter per whole test set",
            )
        )
    cards.append(
        (
            _number(group, "oracle_task_accuracy"),
            "right adapter given",
            "no choice to make",
        )
    )
    return cards


def _number(group: Group, *keys: str) -> str:
    return f"{percent(group.statistic(*keys), group)} %"


def _configurations(group: Group) -> list[tuple[str, str]]:
    """The config.toml of each seed; equal ones are shown once."""
    seeds_of: dict[str, list[str]] = {}
    for seed, folder in zip(group.seeds, group.folders, strict=False):
        file = folder / "config.toml"
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace").strip()
            seeds_of.setdefault(text, []).append(str(seed))
    return [(", ".join(seeds), text) for text, seeds in seeds_of.items()]


def _environment(group: Group) -> list[tuple[str, str]]:
    keys = dict.fromkeys(key for run in group.results for key in run["environment"])
    rows = [
        (
            key,
            ", ".join(
                dict.fromkeys(str(run["environment"].get(key, "unknown")) for run in group.results)
            ),
        )
        for key in keys
    ]
    times = ", ".join(f"{run['seconds']:.1f} s" for run in group.results)
    return [("time" if len(group.seeds) == 1 else "time per seed", times), *rows]


def _html(table: Table) -> Markup:
    return Markup(table.to_html())
