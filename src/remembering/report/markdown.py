"""Results as one Markdown file for the docs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from remembering.report.collect import collect
from remembering.report.comparison import Comparison, comparison_table, cost_table
from remembering.report.figure_files import Figures
from remembering.report.groups import Group
from remembering.report.paper import paper_sections
from remembering.report.table import markdown_text, percent
from remembering.report.tables import (
    domains_table,
    novelty_table,
    oracle,
    summary_table,
    units_table,
)


def results_markdown(
    paths: Sequence[str | Path],
    *,
    intro: str = "",
    command: str = "remember report",
    figures: Figures | None = None,
) -> str:
    """Return all results as Markdown; each table follows the command that reproduces it.

    Args:
        paths: Folders with results. Their order does not matter.
        intro: Markdown that comes first.
        command: Named in a comment as the command that wrote the file.
        figures: Receives the figures. If None, there are tables only.
    """
    groups, comparisons = collect(paths)
    parts = [f"<!-- Written by `{_comment(command)}`; do not edit by hand. -->"]
    parts += [intro.strip()] if intro.strip() else []
    if not groups and not comparisons:
        parts.append("No results are recorded yet.")
    parts += _routing_units(groups)
    if len(groups) > 1:
        parts += ["## All results", summary_table(groups).to_markdown().strip()]
    for experiment, members in groupby(groups, key=lambda group: group.experiment):
        parts.append(f"## {markdown_text(experiment)}")
        description, variants = None, list(members)
        if len(variants) > 1 and variants[0].first.config.settings.stream.kind == "sequence":
            parts += [
                domains_table(list(same)).to_markdown().strip()
                for _, same in groupby(variants, key=lambda group: (group.small, group.backbone))
            ]
        for group in variants:
            if group.description != description:
                description = group.description
                parts.append(markdown_text(description))
            parts += _section(group, figures)
    if comparisons:
        parts.append("## Comparison of methods")
        parts += [part for item in comparisons for part in _comparison(item, figures)]
    if figures and (groups or comparisons):
        parts += paper_sections(groups, comparisons, figures)
    return "\n\n".join(parts) + "\n"


def _routing_units(groups: Sequence[Group]) -> list[str]:
    """Return a list of routing accuracy and accuracy by routing unit."""
    lines = []
    for group in groups:
        units = [unit for unit in ("sample", "group_32", "task") if unit in group.units]
        if group.variant is not None or units[:1] != ["sample"] or "task" not in units:
            continue
        seeds, model = len(group.seeds), group.model
        routed = ", ".join(
            f"{percent(model.statistic(lambda r: r.units[unit].routing_accuracy), seeds)} % "  # noqa: B023 (called at once)
            f"({unit})"
            for unit in units
        )
        reached = ", ".join(f"{percent(model.accuracy(unit), seeds)} % ({unit})" for unit in units)
        lines.append(
            f"- {markdown_text(group.title)} ({markdown_text(group.settings)}): routing accuracy "
            f"{routed}; chance is {100 / group.task_count:.0f} %. Accuracy {reached}; with the "
            f"correct adapter given {percent(group.statistic(oracle), seeds)} %."
        )
    return ["## Effect of the routing unit", "\n".join(lines)] if lines else []


def _section(group: Group, figures: Figures | None) -> list[str]:
    parts = [
        f"### {markdown_text(f'{group.title}, {group.backbone}')}",
        f"```sh\n{group.command}\n```",
        units_table(group).to_markdown().strip(),
        novelty_table(group).to_markdown().strip(),
    ]
    if figures and group.task_count > 1:
        from remembering.report.plots import accuracy_curves

        parts.insert(2, figures.add(accuracy_curves(group), f"{group.slug}-accuracy"))
    return parts


def _comparison(comparison: Comparison, figures: Figures | None) -> list[str]:
    drawn = []
    if figures:
        from remembering.report.comparison_plots import cost_chart, method_curves

        drawn = [
            figures.add(method_curves(comparison), f"{comparison.slug}-accuracy"),
            figures.add(cost_chart(comparison), f"{comparison.slug}-bytes"),
        ]
    cost = cost_table(comparison).to_markdown().strip()
    return [
        f"### {markdown_text(f'{comparison.title}, {comparison.backbone}')}",
        f"```sh\n{comparison.command}\n```",
        comparison_table(comparison).to_markdown().strip(),
        *(["\n".join(drawn)] if drawn else []),
        f"<details>\n<summary>Cost</summary>\n\n{cost}\n\n</details>",
    ]


def _comment(text: str) -> str:
    """Return text that cannot end the comment that contains it."""
    return " ".join(text.split()).replace("-->", "-- >")
