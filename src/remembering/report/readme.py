"""Tables of the README, between comments that name them.

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
from remembering.report.groups import Group, Seeds, code_text, count, seed_list
from remembering.report.table import NOTHING, Table, bytes_text, percent, points
from remembering.report.tables import domains_table

EXPERIMENTS = ("cifar10-5", "cifar100-10", "digits-5", "permuted-mnist-10")
DOMAINS = "domains-5"
COLUMNS = {
    "Ours": ("ours", "sample"),
    "Ours, 20 replay images per class": ("ours-replay", "sample"),
    "Router alone": ("ours-first", "sample"),
    "Gaussians, frozen backbone": ("gaussian", "sample"),
    "Best joint training": ("joint", "sample"),
    "As published": ("ours-published", "sample"),
    "As published, unit task": ("ours-published", "task"),
    "Fine-tuning": ("finetune", "sample"),
}
"""Columns of the table of single images: method and routing unit."""
_BLOCK = re.compile(r"<!-- results:(\S+) -->\n.*?<!-- end -->", re.DOTALL)


def fill_readme(text: str, paths: Sequence[str | Path]) -> str:
    """Return a text with its tables replaced by those of some results.

    Args:
        text: Markdown with pairs of comments.
        paths: Folders with results.

    Raises:
        RememberingError: If a comment names no table, or has no end.
    """
    groups, comparisons = collect(paths)
    tables = {
        "single-images": single_images(groups, comparisons),
        "domains": domains(groups),
    }

    def replaced(block: re.Match[str]) -> str:
        name = block[1]
        if name not in tables:
            raise RememberingError(
                f"there is no table '{name}' of results; known are {', '.join(tables)}"
            )
        return f"<!-- results:{name} -->\n\n{tables[name]}\n\n<!-- end -->"

    filled, blocks = _BLOCK.subn(replaced, text)
    if not blocks or blocks != text.count("<!-- results:"):
        raise RememberingError(
            "tables stand between the lines <!-- results:NAME --> and <!-- end -->; "
            f"{text.count('<!-- results:')} such lines were found, {blocks} with an end"
        )
    return filled


def single_images(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> str:
    """Return the accuracy and the footprint of the main methods, one row per experiment."""
    rows = [row for name in EXPERIMENTS for row in _experiments(name, groups, comparisons)]
    if not rows:
        return "No results of single images are recorded yet."
    shown = [row.row(column) for row in rows for column in COLUMNS]
    accuracy = Table(
        "Accuracy on single images (%), in brackets minus ours (points)",
        ("Experiment", *COLUMNS),
        tuple((row.title, *(row.accuracy(column) for column in COLUMNS)) for row in rows),
        f"{_joint_text(rows)} {code_text(found.seeds for found in shown if found)}",
    )
    columns = [column for column, (_, unit) in COLUMNS.items() if unit == "sample"]
    kept = Table(
        "Bytes kept besides the backbone",
        ("Experiment", *columns),
        tuple((row.name, *(row.bytes(column) for column in columns)) for row in rows),
    )
    parts = [table.without_empty_columns().to_markdown().strip() for table in (accuracy, kept)]
    missing = [name for name in EXPERIMENTS if name not in {row.experiment for row in rows}]
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


@dataclass(frozen=True)
class _Experiment:
    """An experiment with the methods that were run on it, by name; all are on single images."""

    group: Group | Comparison
    methods: Mapping[str, Seeds]

    @property
    def experiment(self) -> str:
        return self.group.experiment

    @property
    def name(self) -> str:
        return self.group.title

    @property
    def title(self) -> str:
        """The experiment and what its accuracies depend on."""
        first = self.group.first
        return (
            f"{self.name}: {first.backbone}, {first.image_size} px, "
            f"{count(len(first.tasks), 'task')}, {seed_list(self.seeds)}"
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
        method, unit = COLUMNS[column]
        seeds = self.methods.get(next(iter(self.joint), "") if method == "joint" else method)
        return Row(unit, seeds) if seeds and unit in seeds.units else None

    def accuracy(self, column: str) -> str:
        """Return the accuracy; in brackets the difference to ours, and the number of seeds."""
        row, ours = self.row(column), self.row("Ours")
        if row is None:
            return NOTHING
        notes = []
        if ours and row != ours and (difference := row.difference(ours)):
            notes.append(points(difference).partition(" ")[0])
        if row.accuracy.n != len(self.seeds):
            notes.append(count(row.accuracy.n, "seed"))
        return percent(row.accuracy, 0) + (f" ({'; '.join(notes)})" if notes else "")

    def bytes(self, column: str) -> str:
        row = self.row(column)
        return bytes_text(row.bytes) if row else NOTHING


def _experiments(
    name: str, groups: Sequence[Group], comparisons: Sequence[Comparison]
) -> list[_Experiment]:
    """Return the experiments of a name, in full size and small, with methods of both commands."""
    found: dict[tuple[bool, str], tuple[Group | Comparison, dict[str, Seeds]]] = {}
    every: list[Group | Comparison] = [*comparisons, *groups]
    for shown in every:
        if shown.experiment != name or shown.variant:
            continue
        _, methods = found.setdefault((shown.small, shown.backbone), (shown, {}))
        for method, seeds in _methods(shown).items():
            methods.setdefault(method, seeds)
    return [_Experiment(shown, methods) for _, (shown, methods) in sorted(found.items())]


def _methods(shown: Group | Comparison) -> dict[str, Seeds]:
    if isinstance(shown, Comparison):
        return {row.seeds.method: row.seeds for row in shown.rows}
    methods = {seeds.method: seeds for seeds in (shown.model, *shown.baselines)}
    return {"ours" if name == MODEL else name: seeds for name, seeds in methods.items()}


def _joint_text(rows: Sequence[_Experiment]) -> str:
    """Return which variants of joint training are the best ones."""
    best = [f"{row.name}: {row.joint[0]}" for row in rows if len(row.joint) > 1]
    text = "After the last task, ± standard deviation over seeds."
    return f"{text} Best joint training: {'; '.join(best)}." if best else text
