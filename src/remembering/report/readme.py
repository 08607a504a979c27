"""Tables and the figure of the README, between comments that name them.

<!-- results:NAME -->
everything here is replaced
<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from remembering.errors import RememberingError
from remembering.experiments.spec import MODEL
from remembering.report.collect import collect
from remembering.report.comparison import Comparison, Row
from remembering.report.figure_files import Figures
from remembering.report.groups import (
    Group,
    Seeds,
    Statistic,
    code_text,
    count,
    seed_list,
    short_settings,
)
from remembering.report.table import (
    BREAK,
    NOTHING,
    Table,
    bytes_text,
    markdown_text,
    percent,
    points,
)
from remembering.report.tables import domains_table

EXPERIMENTS = ("cifar10-5", "cifar100-10", "digits-5", "permuted-mnist-10")
DOMAINS = "domains-5"
OURS, REPLAY, JOINT = "Ours", "Ours, with replay", "Best joint training"
FROZEN, FIRST = "Router alone, frozen", "Router alone, adapted"
PUBLISHED, FINETUNE = "As published, sample", "Fine-tuning"
COLUMNS = {
    OURS: ("ours", "sample"),
    REPLAY: ("ours-replay", "sample"),
    FROZEN: ("gaussian", "sample"),
    FIRST: ("ours-first", "sample"),
    JOINT: ("joint", "sample"),
    PUBLISHED: ("ours-published", "sample"),
    "As published, task": ("ours-published", "task"),
    FINETUNE: ("finetune", "sample"),
}
"""Columns of the table of single images: method and routing unit."""
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


@dataclass(frozen=True)
class ExperimentRow:
    """An experiment with the methods that were run on it, by name; all are on single images."""

    group: Group | Comparison
    methods: Mapping[str, Seeds]

    @property
    def experiment(self) -> str:
        """Name of the experiment."""
        return self.group.experiment

    @property
    def name(self) -> str:
        """The experiment, and whether it is the small version."""
        return self.group.title

    @property
    def cell(self) -> str:
        """The experiment and the number of seeds of ours."""
        return BREAK.join((self.name, count(len(self.seeds), "seed")))

    @property
    def settings(self) -> str:
        """The settings for the subtitle of a plot."""
        return short_settings(self.group.first, self.seeds)

    @property
    def facts(self) -> str:
        """A sentence with what the accuracies depend on."""
        first = self.group.first
        return (
            f"{self.name}: {first.backbone}, {first.image_size} px, "
            f"{count(len(first.tasks), 'task')}, {seed_list(self.seeds)}."
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of ours, or of the method that has most."""
        members = sorted(self.methods.values(), key=lambda seeds: -len(seeds.seeds))
        return self.methods.get("ours", members[0]).seeds

    @property
    def joint(self) -> list[str]:
        """Names of variants of joint training, the most accurate first."""
        found = [name for name in self.methods if name.startswith("joint")]
        return sorted(found, key=lambda name: -Row("sample", self.methods[name]).accuracy.mean)

    def row(self, column: str) -> Row | None:
        """Return the method of a column, if it was run."""
        method, unit = COLUMNS[column]
        seeds = self.methods.get(next(iter(self.joint), "") if method == "joint" else method)
        return Row(unit, seeds) if seeds and unit in seeds.units else None

    def text(self, column: str) -> str:
        """Return accuracy, deviation, difference to ours, and bytes, one per line."""
        row, ours = self.row(column), self.row(OURS)
        if row is None:
            return NOTHING
        mean, sign, deviation = percent(row.accuracy, 0).partition(" ± ")
        lines = [mean, f"± {deviation}" if sign else ""]
        if row.accuracy.n != len(self.seeds):
            lines.append(count(row.accuracy.n, "seed"))
        if ours and row != ours and (difference := row.difference(ours)):
            lines.append(f"({_points(difference)})")
        return BREAK.join(line for line in (*lines, bytes_text(row.bytes)) if line)

    def not_lower(self) -> list[str]:
        """Return the columns that are at least as accurate as ours on single images."""
        ours = self.row(OURS)
        found = []
        for column in COLUMNS:
            row = self.row(column)
            difference = row.difference(ours) if row and ours and row != ours else None
            if difference and difference.mean > -0.0005:
                found.append(f"{column} {_points(difference)}")
        return found

    def contribution(self, column: str, without: str) -> str | None:
        """Return the difference between two columns, if both were run with common seeds."""
        row, other = self.row(column), self.row(without)
        difference = row.difference(other) if row and other else None
        return f"{self.name}: {_points(difference)}" if difference else None


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


def experiments_named(
    name: str, groups: Sequence[Group], comparisons: Sequence[Comparison]
) -> list[ExperimentRow]:
    """Return the experiments of a name, full size and small, with the methods of both commands."""
    found: dict[tuple[bool, str], tuple[Group | Comparison, dict[str, Seeds]]] = {}
    every: list[Group | Comparison] = [*comparisons, *groups]
    for shown in every:
        if shown.experiment != name or shown.variant:
            continue
        _, methods = found.setdefault((shown.small, shown.backbone), (shown, {}))
        for method, seeds in _methods(shown).items():
            methods.setdefault(method, seeds)
    return [ExperimentRow(shown, methods) for _, (shown, methods) in sorted(found.items())]


def _methods(shown: Group | Comparison) -> dict[str, Seeds]:
    if isinstance(shown, Comparison):
        return {row.seeds.method: row.seeds for row in shown.rows}
    methods = {seeds.method: seeds for seeds in (shown.model, *shown.baselines)}
    return {"ours" if name == MODEL else name: seeds for name, seeds in methods.items()}


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


def _points(difference: Statistic) -> str:
    return points(difference).partition(" ")[0]
