"""A comparison of methods on disk, and as a table.

`remember compare` writes one JSON file a method and seed (see comparing.py). Here those of one
method and routing unit become a `Row`, and the rows of one folder a `Comparison`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remembering.errors import RememberingError
from remembering.report.outcome import Record, load_left_out, load_record
from remembering.report.published import Published, published_method
from remembering.report.results import FILE_NAME, Group, Statistic, count, load_groups
from remembering.report.tables import NOTHING, Table, size

COMPARE, LEFT_OUT_FILE = "compare.toml", "left-out.json"
_SAME = ("experiment", "small", "backbone", "image_size", "data", "tasks")


@dataclass(frozen=True)
class Row:
    """One method under one routing unit, over seeds."""

    unit: str
    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def title(self) -> str:
        """The method, and the routing unit where it is not the single image alone."""
        title = str(self.first["title"])
        return title if len(self.first["units"]) == 1 else f"{title} ({self.unit})"

    @property
    def published(self) -> Published | None:
        """What the paper prints for it; its own only under the unit that it was reached with."""
        found = published_method(self.first["experiment"], self.first["published"])
        ours = self.first["published"] == "Ours"
        return None if found is None or (ours and self.unit != found.unit) else found

    def score(self, key: str) -> Statistic | None:
        """Of `accuracy`, `average` or `forgetting`, over seeds."""
        return Statistic.of(record["units"][self.unit][key] for record in self.records)

    def number(self, value: Callable[[Record], float]) -> Statistic:
        """Of anything else that every seed has."""
        found = Statistic.of(value(record) for record in self.records)
        assert found is not None
        return found

    @property
    def curve(self) -> tuple[Statistic | None, ...]:
        """Mean accuracy over the tasks seen so far, after each task."""
        series = [record["units"][self.unit]["accuracy_after"] for record in self.records]
        return tuple(Statistic.of(column) for column in zip(*series, strict=True))

    @property
    def bytes(self) -> float:
        """Kept beside the backbone."""
        return self.number(lambda record: record["kept"]["bytes"]).mean


@dataclass(frozen=True)
class Comparison:
    """All methods on one experiment, the most accurate first."""

    folder: Path
    rows: tuple[Row, ...]
    left_out: dict[str, dict[str, Any]]

    @property
    def first(self) -> Record:
        return self.rows[0].first

    @property
    def experiment(self) -> str:
        return str(self.first["experiment"])

    @property
    def title(self) -> str:
        return f"{self.experiment}{' (small)' if self.first['small'] else ''}"

    @property
    def backbone(self) -> str:
        return str(self.first["backbone"])

    @property
    def seeds(self) -> list[int]:
        return sorted({record["seed"] for row in self.rows for record in row.records})

    @property
    def settings(self) -> str:
        """What must stand beside every accuracy."""
        first, seeds = self.first, ", ".join(map(str, self.seeds))
        return (
            f"backbone {self.backbone}, data {first['data']} at "
            f"{first['image_size']}×{first['image_size']} px, {count(first['tasks'], 'task')}, "
            f"{'seed' if len(self.seeds) == 1 else 'seeds'} {seeds}"
        )

    @property
    def command(self) -> str:
        """The command that makes it again."""
        given = {row.first["method"]: row.first["given"] for row in self.rows}
        changed = [
            f"{method}.{option}={number_text(value)}"
            for method, options in sorted(given.items())
            for option, value in options.items()
        ]
        words = ["remember", "compare", *(" ".join(word.split()) for word in self.first["asked"])]
        words += ["--methods", ",".join(sorted(given))]
        words += ["--options", *changed] if changed else []
        return shlex.join([*words, "--seeds", ",".join(map(str, self.seeds))])

    @property
    def slug(self) -> str:
        """A name for files and anchors."""
        words = ("compare", self.title, self.backbone)
        parts = (re.sub(r"[^a-z0-9]+", "-", str(word).lower()).strip("-") for word in words)
        return "-".join(part for part in parts if part)


def asked(
    name: str, small: bool, backbone: str | None, image_size: int | None, data: str | None
) -> list[str]:
    """What a comparison was asked with, beside methods, options and seeds.

    Paths are as they were given; of one outside the working folder, the end.

    >>> asked("cifar10-5", True, "/home/me/models/vit-tiny", 112, None)
    ['cifar10-5', '--small', '--backbone', 'PATH/vit-tiny', '--image-size', '112']
    """
    given = {"--backbone": backbone, "--image-size": image_size, "--data": data}
    words = [name, *(["--small"] if small else [])]
    for option, value in given.items():
        words += [] if value is None else [option, str(value)]
    paths = [Path(word).expanduser() for word in words]
    return [
        f"PATH/{path.name}" if path.is_absolute() or ".." in path.parts else word
        for path, word in zip(paths, words, strict=True)
    ]


def load_comparison(folder: Path) -> Comparison:
    """What a folder of `remember compare` holds so far."""
    files = _records(folder)
    if not files:
        raise RememberingError(f"no method of the comparison in {folder} is done yet")
    together: dict[tuple[str, str], list[Record]] = {}
    first = load_record(files[0])
    for file in files:
        record = load_record(file)
        for key in _SAME:
            if record[key] != first[key]:
                raise RememberingError(
                    f"{file} and {files[0]} differ in {key}; they are of different comparisons"
                )
        for unit in record["units"]:
            others = together.setdefault((record["method"], unit), [])
            if others and others[0]["options"] != record["options"]:
                raise RememberingError(
                    f"{file} was made with other options than other seeds of its method; remove "
                    "one or the other and compare again"
                )
            others.append(record)
    rows = [
        Row(unit, tuple(sorted(records, key=lambda record: record["seed"])))
        for (_, unit), records in together.items()
    ]
    rows.sort(key=lambda row: (-_mean(row.score("accuracy")), row.title))
    return Comparison(folder, tuple(rows), load_left_out(folder / LEFT_OUT_FILE))


def _records(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*/seed-*.json") if re.fullmatch(r"seed-\d+", p.stem))


def find_comparisons(paths: Iterable[str | Path]) -> list[Comparison]:
    """Every comparison in these folders or below them, in a stable order.

    One below them that has only begun is left out, as a run is that has only begun.
    """
    paths = list(paths)
    named = {Path(path).resolve() for path in paths}
    found = {
        file.parent.resolve(): file.parent
        for path in map(Path, paths)
        if path.is_dir()
        for file in sorted(path.rglob(COMPARE))
    }
    told = [found[key] for key in sorted(found) if key in named or _records(found[key])]
    loaded = [load_comparison(folder) for folder in told]
    return sorted(loaded, key=lambda item: (item.experiment, item.first["small"], item.slug))


def load_all(paths: Sequence[str | Path]) -> tuple[list[Group], list[Comparison]]:
    """Runs and comparisons under these paths; a path must hold one or the other."""
    comparisons = find_comparisons(paths)
    only_compared = [
        path
        for path in map(Path, paths)
        if any(path.rglob(COMPARE)) and not any(path.rglob(FILE_NAME))
    ]
    others = [path for path in map(Path, paths) if path not in only_compared]
    groups = load_groups(others)
    if not groups and not comparisons:
        told = ", ".join(map(str, paths))
        raise RememberingError(f"no method of the comparisons in {told} is done yet")
    return groups, comparisons


def comparison_table(comparison: Comparison) -> Table:
    """One row a method, sorted; methods that cannot be carried over come last, with the reason."""
    seeds = len(comparison.seeds)
    rows = [
        (
            row.title,
            percent(row.score("accuracy"), seeds),
            percent(row.score("average"), seeds),
            percent(row.score("forgetting"), seeds),
            size(round(row.number(lambda r: r["trained"]).mean)),
            size(round(row.number(lambda r: r["kept"]["parameters"]).mean)),
            size(round(row.number(lambda r: r["kept"]["images"]).mean)),
            bytes_text(row.bytes),
            f"{row.number(lambda r: sum(r['seconds_learning'])).mean:.1f}",
            f"{row.number(lambda r: r['images_per_second']).mean:.0f}",
            published_text(row.published),
        )
        for row in comparison.rows
    ]
    for method in comparison.left_out.values():
        printed = published_method(comparison.experiment, method["published"])
        rows.append((method["title"], *[NOTHING] * 9, published_text(printed)))
    return Table(
        caption=f"{comparison.title}, methods compared: {comparison.settings}",
        headers=(
            "Method",
            "Accuracy (%)",
            "Average (%)",
            "Forgetting (points)",
            "Trained",
            "Kept",
            "Images kept",
            "Bytes kept",
            "Training (s)",
            "Images/s",
            "Paper (%)",
        ),
        rows=tuple(rows),
        note=_note(comparison),
    )


def methods_table(comparison: Comparison) -> Table:
    """What each method is and keeps."""
    methods = {row.first["method"]: row.first for row in comparison.rows}
    rows = tuple(
        (
            record["title"],
            record["method"],
            record["stores"],
            ", ".join(f"{k} = {number_text(v)}" for k, v in record["options"].items()) or NOTHING,
            record["reference"],
        )
        for record in methods.values()
    )
    headers = ("Method", "Name", "What it keeps", "Options", "Reference")
    return Table(f"{comparison.title}: methods", headers, rows)


def number_text(value: float) -> str:
    """All digits of an option, and no more.

    >>> number_text(100000.0), number_text(0.1)
    ('100000', '0.1')
    """
    return str(value).removesuffix(".0")


def _note(comparison: Comparison) -> str:
    note = (
        "Accuracy: mean over tasks after the last one, each image alone unless a routing unit is "
        "named. Average: mean of that after each task. Trained: parameters that gradient descent "
        "changes. Kept: numbers beside the frozen backbone. Images kept: all methods with a memory "
        "have one of 20 training images for each class of each task, unless the command says "
        "otherwise. Paper: what Table 1 prints, with other backbones and all the data."
    )
    if len(comparison.seeds) > 1:
        note += " ± is the deviation over seeds."
    asked = [row.score("accuracy") for row in comparison.rows]
    if any(score and score.n < len(comparison.seeds) for score in asked):
        note += f" (n of {len(comparison.seeds)}): the other seeds are not run yet."
    if any(None in row.curve for row in comparison.rows):
        note += " Who has no average was asked after the last task only, and is level in figures."
    for method in comparison.left_out.values():
        note += f" {method['title']} is left out: {method['reason']}."
    return note


def percent(value: Statistic | None, seeds: int) -> str:
    """In percent with one decimal, ± the deviation; says so when some seeds have no such number."""
    if value is None:
        return NOTHING
    text = f"{100 * value.mean:.1f}".replace("-0.0", "0.0")
    text += "" if value.deviation is None else f" ± {100 * value.deviation:.1f}"
    return text + (f" ({value.n} of {seeds})" if value.n < seeds else "")


def bytes_text(number: float) -> str:
    """A number of bytes, short enough for a table.

    >>> bytes_text(512), bytes_text(40_744), bytes_text(16_928_000)
    ('512 B', '40.7 kB', '16.9 MB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number:.0f} B"


def published_text(published: Published | None) -> str:
    """A number of the paper in the paper's own precision."""
    return f"{published.accuracy} ± {published.deviation}" if published else NOTHING


def _mean(value: Statistic | None) -> float:
    return value.mean if value else 0.0
