"""Results as one Markdown file for the docs, so that no number there is typed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from remembering.report.comparison import Comparison, comparison_table, load_all
from remembering.report.results import Group
from remembering.report.tables import (
    markdown_text,
    novelty_table,
    percent,
    summary_table,
    units_table,
)


def results_markdown(
    paths: Sequence[str | Path], *, intro: str = "", command: str = "remember report"
) -> str:
    """All results under these paths: every table stands below the command that reproduces it.

    `intro` is Markdown that comes first, below a comment that names the `command` that wrote the
    file. The same results give the same text, in whatever order the paths are given.
    """
    groups, comparisons = load_all(paths)
    parts = [f"<!-- Written by `{_comment(command)}`; do not edit by hand. -->"]
    parts += [intro.strip()] if intro.strip() else []
    parts += _protocols(groups)
    if len(groups) > 1:
        parts += ["## All results", summary_table(groups).to_markdown().strip()]
    for experiment, members in groupby(groups, key=lambda group: group.experiment):
        parts.append(f"## {markdown_text(experiment)}")
        description = None
        for group in members:
            if group.description != description:
                description = group.description
                parts.append(markdown_text(description))
            parts += _section(group)
    if comparisons:
        parts.append("## Methods compared")
        parts += [part for comparison in comparisons for part in _contest(comparison)]
    return "\n\n".join(parts) + "\n"


def _protocols(groups: Sequence[Group]) -> list[str]:
    """What the published protocol means for a single image, in the figures of these groups."""
    lines = []
    for group in groups:
        units = [unit for unit in ("sample", "group_32", "task") if unit in group.units]
        if group.variant is not None or units[:1] != ["sample"] or "task" not in units:
            continue
        routed = ", ".join(
            f"{percent(group.statistic('routing_accuracy', unit), group)} % ({unit})"
            for unit in units
        )
        reached = ", ".join(
            f"{percent(group.statistic('accuracy', unit), group)} % ({unit})" for unit in units
        )
        lines.append(
            f"- {markdown_text(group.title)} ({markdown_text(group.settings)}): routed right "
            f"{routed}; chance is {100 / group.task_count:.0f} %. Accuracy {reached}; with the "
            f"right adapter given {percent(group.statistic('oracle_task_accuracy'), group)} %."
        )
    return ["## What a routing unit does to the numbers", "\n".join(lines)] if lines else []


def _section(group: Group) -> list[str]:
    tables = [units_table(group), novelty_table(group)]
    return [
        f"### {markdown_text(f'{group.title}, {group.backbone}')}",
        f"```sh\n{group.command}\n```",
        *(table.to_markdown().strip() for table in tables if table),
    ]


def _contest(comparison: Comparison) -> list[str]:
    return [
        f"### {markdown_text(f'{comparison.title}, {comparison.backbone}')}",
        f"```sh\n{comparison.command}\n```",
        comparison_table(comparison).to_markdown().strip(),
    ]


def _comment(text: str) -> str:
    """Text that cannot end the comment it stands in."""
    return " ".join(text.split()).replace("-->", "-- >")
