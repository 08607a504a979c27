"""Results as one Markdown file for the docs, so that no number there is typed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from remembering.report.results import Group, load_groups
from remembering.report.tables import markdown_text, summary_table, units_table


def results_markdown(
    paths: Sequence[str | Path], *, intro: str = "", command: str = "remember report"
) -> str:
    """All results under these paths: every table stands below the command that reproduces it.

    `intro` is Markdown that comes first, below a comment that names the `command` that wrote the
    file. The same results give the same text, in whatever order the paths are given.
    """
    groups = load_groups(paths)
    parts = [f"<!-- Written by `{_comment(command)}`; do not edit by hand. -->"]
    parts += [intro.strip()] if intro.strip() else []
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
    return "\n\n".join(parts) + "\n"


def _section(group: Group) -> list[str]:
    return [
        f"### {markdown_text(f'{group.title}, {group.backbone}')}",
        f"```sh\n{group.command}\n```",
        units_table(group).to_markdown().strip(),
    ]


def _comment(text: str) -> str:
    """Text that cannot end the comment it stands in."""
    return " ".join(text.split()).replace("-->", "-- >")
