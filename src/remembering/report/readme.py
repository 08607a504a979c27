"""Tables and the figure of the README, between comments that name them.

<!-- results:NAME -->
everything here is replaced
<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from remembering.errors import RememberingError
from remembering.report.collect import collect
from remembering.report.experiment_rows import (
    COLUMNS,
    FIRST,
    FROZEN,
    OURS,
    ExperimentRow,
    experiments_named,
)
from remembering.report.figure_files import Figures
from remembering.report.groups import Group, code_text
from remembering.report.table import Table, markdown_text
from remembering.report.tables import domains_table

EXPERIMENTS = ("cifar10-5", "cifar100-10", "digits-5", "permuted-mnist-10")
DOMAINS = "domains-5"
_BLOCK = re.compile(r"<!-- results:(\S+) -->\n.*?<!-- end -->", re.DOTALL)


def fill_readme(text: str, paths: Sequence[str | Path], figures: Figures | None = None) -> str:
    """Return a text with its tables and figure replaced by those of some results.

    Args:
        text: Markdown with pairs of comments.
        paths: Folders with results.
        figures: Receives the figure. If None, a text must not name it.

    Raises:
        RememberingError: If a comment names no table, or has no end.
    """
    groups, comparisons = collect(paths)
    shown = [row for name in EXPERIMENTS for row in experiments_named(name, groups, comparisons)]
    known = {
        "single-images": lambda: single_images(shown),
        "domains": lambda: domains(groups),
    }
    if figures:
        known["figure"] = lambda: _figure(shown, figures)

    def replaced(block: re.Match[str]) -> str:
        name = block[1]
        if name not in known:
            hint = "; --figures FOLDER is missing" if name == "figure" else ""
            raise RememberingError(
                f"there is no table '{name}' of results; known are {', '.join(known)}{hint}"
            )
        return f"<!-- results:{name} -->\n\n{known[name]()}\n\n<!-- end -->"

    filled, blocks = _BLOCK.subn(replaced, text)
    if not blocks or blocks != text.count("<!-- results:"):
        raise RememberingError(
            "tables stand between the lines <!-- results:NAME --> and <!-- end -->; "
            f"{text.count('<!-- results:')} such lines were found, {blocks} with an end"
        )
    return filled


def single_images(shown: Sequence[ExperimentRow]) -> str:
    """Return accuracy, difference to ours and footprint of the main methods, and what follows."""
    if not shown:
        return "No results of single images are recorded yet."
    rows = [row.row(column) for row in shown for column in COLUMNS]
    table = Table(
        "Accuracy on single images (%); the column “task” is another protocol",
        ("Experiment", *COLUMNS),
        tuple((row.cell, *(row.text(column) for column in COLUMNS)) for row in shown),
        "In a cell: accuracy after the last task, ± standard deviation over seeds, (difference to "
        "ours in points over common seeds), and bytes kept besides the backbone. With replay: 20 "
        "images per class are kept. Router alone: class Gaussians, on the frozen backbone or "
        "adapted to the first task. As published: the paper's configuration, by routing unit. "
        f"{code_text(found.seeds for found in rows if found)}",
    ).without_empty_columns()
    remarks = "\n".join(f"- {markdown_text(remark)}" for remark in _remarks(shown))
    parts = [table.to_markdown().strip(), *([remarks] if remarks else [])]
    missing = [name for name in EXPERIMENTS if name not in {row.experiment for row in shown}]
    if missing:
        parts.append(f"No results of {', '.join(missing)} are recorded yet.")
    return "\n\n".join(parts)


def domains(groups: Sequence[Group]) -> str:
    """Return the accuracy on each domain, learned in a row and alone."""
    tables = [
        domains_table(members)
        for small in (False, True)
        if (members := [g for g in groups if (g.experiment, g.small) == (DOMAINS, small)])
    ]
    if not tables:
        return f"No results of {DOMAINS} are recorded yet."
    return "\n\n".join(table.to_markdown().strip() for table in tables)


def _remarks(shown: Sequence[ExperimentRow]) -> list[str]:
    """Return where ours is not ahead, and what its parts contribute."""
    level = [f"{row.name}: {', '.join(found)}" for row in shown if (found := row.not_lower())]
    best = [f"{row.name}: {row.joint[0]}" for row in shown if len(row.joint) > 1]
    remarks = [
        " ".join(row.facts for row in shown),
        f"As accurate as ours, or more (points): {'; '.join(level)}." if level else "",
        f"Best joint training: {'; '.join(best)}." if best else "",
    ]
    for what, column, without in (
        ("Adaptation to the first task adds", FIRST, FROZEN),
        ("Later adapters add", OURS, FIRST),
    ):
        found = [text for row in shown if (text := row.contribution(column, without))]
        remarks.append(f"{what} (points): {'; '.join(found)}." if found else "")
    return [remark for remark in remarks if remark]


def _figure(shown: Sequence[ExperimentRow], figures: Figures) -> str:
    from remembering.report.overview import overview

    plot = overview(shown)
    return figures.add(plot, "accuracy") if plot else "No results are recorded yet."
