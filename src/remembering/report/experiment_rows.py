"""Rows of the README's table: an experiment with the main methods, all on single images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remembering.experiments.spec import MODEL
from remembering.report.comparison import Comparison, Row
from remembering.report.groups import Group, Seeds, Statistic, count, seed_list, short_settings
from remembering.report.table import BREAK, NOTHING, bytes_text, percent, points

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


def _points(difference: Statistic) -> str:
    return points(difference).partition(" ")[0]
