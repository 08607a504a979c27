"""Comparisons: all methods on one experiment, and their tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remembering.experiments.published import Published, published_method
from remembering.experiments.result import RunResult, UnitResult
from remembering.report.groups import (
    ExperimentResults,
    Seeds,
    Statistic,
    code_text,
    command_line,
    describe,
    seed_list,
    slug,
)
from remembering.report.table import (
    NOTHING,
    Table,
    bytes_text,
    number_text,
    percent,
    points,
    published_text,
    size,
)


@dataclass(frozen=True)
class Row:
    """One method under one routing unit."""

    unit: str
    seeds: Seeds

    @property
    def first(self) -> RunResult:
        """The result with the lowest seed."""
        return self.seeds.first

    @property
    def title(self) -> str:
        """The method, and the routing unit if there are several."""
        title = self.first.method.title
        return title if len(self.first.units) == 1 else f"{title} ({self.unit})"

    @property
    def published(self) -> Published | None:
        """What the paper prints for the method; its own number only under its routing unit."""
        row = self.first.method.published
        found = published_method(self.first.config.experiment, row)
        return None if found and row == "Ours" and self.unit != found.unit else found

    def statistic(self, value: Callable[[UnitResult], float | None]) -> Statistic | None:
        """Return the statistic of a number under the routing unit."""
        return self.seeds.statistic(lambda result: value(result.units[self.unit]))

    @property
    def accuracy(self) -> Statistic:
        """Accuracy after the last task."""
        found = self.seeds.accuracy(self.unit)
        assert found is not None, "a row has its unit in every result"
        return found

    def difference(self, other: Row) -> Statistic | None:
        """Return the difference in accuracy to another row, paired by seed.

        Seeds count that both have on the same data; None if there are none, or if the routing
        units differ.
        """
        if self.unit != other.unit:
            return None
        ours, others = (
            {(r.seed, r.data_sha256): r.units[row.unit].accuracy for r in row.seeds.results}
            for row in (self, other)
        )
        return Statistic.of(ours[key] - others[key] for key in ours if key in others)

    @property
    def curve(self) -> tuple[Statistic | None, ...]:
        """Accuracy after each task."""
        return self.seeds.accuracy_after(self.unit)

    @property
    def bytes(self) -> float:
        """Bytes kept besides the backbone."""
        return self.seeds.number(lambda result: result.footprint.bytes)


@dataclass(frozen=True)
class Comparison(ExperimentResults):
    """All methods on one experiment, the most accurate first. Use `of` to make one."""

    rows: tuple[Row, ...]

    @classmethod
    def of(cls, methods: Sequence[Seeds]) -> Comparison:
        """Return the comparison of methods that were run with the same settings."""
        rows = [Row(unit, seeds) for seeds in methods for unit in seeds.first.units]
        return cls(tuple(sorted(rows, key=lambda row: (-row.accuracy.mean, row.title))))

    @property
    def first(self) -> RunResult:
        """A result of the most accurate method."""
        return self.rows[0].first

    @property
    def ours(self) -> Row | None:
        """The row of our default model on single images."""
        found = (row for row in self.rows if (row.seeds.method, row.unit) == ("ours", "sample"))
        return next(found, None)

    @property
    def seeds(self) -> list[int]:
        """Seeds of all results."""
        return sorted({seed for row in self.rows for seed in row.seeds.seeds})

    @property
    def settings(self) -> str:
        """What an accuracy needs beside it."""
        return f"{describe(self.first)}, {seed_list(self.seeds)}"

    @property
    def command(self) -> str:
        """The command that runs this comparison again."""
        options = {row.seeds.method: row.first.config.options for row in self.rows}
        changed = [
            f"{method}.{option}={number_text(value)}"
            for method, values in sorted(options.items())
            for option, value in values.items()
        ]
        words = ["--methods", ",".join(sorted(options))]
        words += ["--options", *changed] if changed else []
        return command_line(self.first, *words, "--seeds", ",".join(map(str, self.seeds)))

    @property
    def slug(self) -> str:
        """A name for files and anchors."""
        return slug("compare", self.title, self.backbone)


def comparison_table(comparison: Comparison) -> Table:
    """Return one row per method and routing unit, the most accurate first."""
    seeds, ours = len(comparison.seeds), comparison.ours
    rows = []
    for row in comparison.rows:
        number = row.seeds.number
        rows.append(
            (
                row.title,
                percent(row.accuracy, seeds),
                points(row.difference(ours)) if ours and row is not ours else NOTHING,
                bytes_text(row.bytes),
                percent(row.statistic(lambda unit: unit.average), seeds),
                percent(row.statistic(lambda unit: unit.forgetting), seeds),
                size(number(lambda r: r.footprint.trained)),
                size(number(lambda r: r.footprint.parameters)),
                size(number(lambda r: r.footprint.replay_images)),
                f"{number(lambda r: sum(r.seconds_learning)):.1f}",
                f"{number(lambda r: r.images_per_second):.0f}",
                published_text(row.published),
            )
        )
    return Table(
        caption=f"{comparison.title}, comparison of methods: {comparison.settings}",
        headers=(
            "Method",
            "Accuracy (%)",
            "Minus ours (points)",
            "Bytes",
            "Average (%)",
            "Forgetting (points)",
            "Trained",
            "Parameters",
            "Images",
            "Training (s)",
            "Images/s",
            "Paper (%)",
        ),
        rows=tuple(rows),
        note=_note(comparison),
    ).without_empty_columns()


def methods_table(comparison: Comparison) -> Table:
    """Return what each method is and keeps."""
    methods = {row.seeds.method: row.first.method for row in comparison.rows}
    rows = tuple(
        (
            info.title,
            name,
            info.stores,
            ", ".join(f"{k} = {number_text(v)}" for k, v in info.options.items()) or NOTHING,
            info.reference,
        )
        for name, info in methods.items()
    )
    headers = ("Method", "Name", "Keeps", "Options", "Reference")
    return Table(f"{comparison.title}: methods", headers, rows)


def _note(comparison: Comparison) -> str:
    note = (
        "Accuracy: mean over tasks after the last one, each image alone unless a routing unit is "
        "given. Minus ours: difference to “Ours”, mean and deviation over common seeds. "
        "Average: mean of the accuracy after each task. Trained: parameters that gradient "
        "descent changes. Parameters, images, bytes: what is kept besides the frozen backbone. All "
        "methods with a replay memory keep 20 training images per class of each task, unless the "
        "command changes this."
    )
    if any(row.published for row in comparison.rows):
        note += " Paper: Table 1, with other backbones and all the data."
    seeds = len(comparison.seeds)
    note += f" {code_text(row.seeds for row in comparison.rows)}"
    if seeds > 1:
        note += " ± is the standard deviation over seeds."
    if any(row.accuracy.n < seeds for row in comparison.rows):
        note += f" (n of {seeds} seeds): the other seeds are not run yet."
    if any(None in row.curve for row in comparison.rows):
        note += (
            " Methods without an average were evaluated after the last task only; plots show them "
            "as horizontal lines."
        )
    return note
