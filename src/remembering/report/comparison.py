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
    count,
    describe,
    seed_list,
    short_settings,
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
    def short_settings(self) -> str:
        """The settings for the subtitle of a plot."""
        return short_settings(self.first, self.seeds)

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
    ours = comparison.ours
    return Table(
        caption=f"{comparison.title}, comparison of methods: {comparison.settings}",
        headers=(
            "Method",
            "Accuracy (%)",
            "Minus ours (points)",
            "Seeds",
            "Bytes",
            "Average (%)",
            "Forgetting (points)",
            "Paper (%)",
        ),
        rows=tuple(
            (
                row.title,
                percent(row.accuracy, 0),
                _difference(row, ours),
                str(row.accuracy.n),
                bytes_text(row.bytes),
                percent(row.statistic(lambda unit: unit.average), 0),
                percent(row.statistic(lambda unit: unit.forgetting), 0),
                published_text(row.published),
            )
            for row in comparison.rows
        ),
        note=_note(comparison),
    ).without_empty_columns()


def cost_table(comparison: Comparison) -> Table:
    """Return what each method keeps and how fast it is."""
    methods = {row.seeds.method: row for row in comparison.rows}
    return Table(
        caption=f"{comparison.title}, cost of methods: {comparison.settings}",
        headers=(
            "Method",
            "Bytes",
            "Parameters",
            "Trained",
            "Images",
            "Training (s)",
            "Images/s",
        ),
        rows=tuple(
            (
                row.first.method.title,
                bytes_text(row.bytes),
                size(row.seeds.number(lambda r: r.footprint.parameters)),
                size(row.seeds.number(lambda r: r.footprint.trained)),
                size(row.seeds.number(lambda r: r.footprint.replay_images)),
                f"{row.seeds.number(lambda r: sum(r.seconds_learning)):.1f}",
                f"{row.seeds.number(lambda r: r.images_per_second):.0f}",
            )
            for row in methods.values()
        ),
        note="Bytes, parameters, images: what is kept besides the frozen backbone. Trained: "
        "parameters that gradient descent changes. All methods with a replay memory keep 20 "
        "training images per class of each task, unless the command changes this.",
    )


def _difference(row: Row, ours: Row | None) -> str:
    """Return the paired difference to ours; the number of pairs if some seeds have no partner."""
    found = row.difference(ours) if ours and row is not ours else None
    if found is None:
        return NOTHING
    unpaired = found.n < row.accuracy.n
    return points(found) + (f" ({count(found.n, 'common seed')})" if unpaired else "")


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
        "given. Minus ours: difference to “Ours”, mean and deviation over common seeds. Bytes: "
        "everything that is kept besides the frozen backbone. Average: mean of the accuracy after "
        "each task."
    )
    if any(row.published for row in comparison.rows):
        note += " Paper: Table 1, with other backbones and all the data."
    if len(comparison.seeds) > 1:
        note += " ± is the standard deviation over seeds."
    if any(None in row.curve for row in comparison.rows):
        note += (
            " Methods without an average were evaluated after the last task only; figures show "
            "them as single points."
        )
    return f"{note} {code_text(row.seeds for row in comparison.rows)}"
