"""Results on disk, and the same experiment over several seeds as one thing.

A run directory holds one `results.json` per seed and variant. Runs that differ only in their seed
belong together: a `Group`. Everything that is shown (tables, plots, the page) is made from groups,
so that a deviation is always over seeds and never over anything else.
"""

from __future__ import annotations

import json
import re
import shlex
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remembering.errors import RememberingError
from remembering.report.validation import check_results

Results = dict[str, Any]

FILE_NAME = "results.json"


def load_results(path: str | Path) -> Results:
    """Read and check one results.json; `path` is the file or the run directory that holds it."""
    path = Path(path)
    file = path / FILE_NAME if path.is_dir() else path
    try:
        results = json.loads(file.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RememberingError(
            f"cannot read {file}: {reason}; give a run directory with a {FILE_NAME} in it"
        ) from error
    except ValueError as error:
        raise RememberingError(
            f"{file} is not valid JSON ({error}); run the experiment again"
        ) from error
    check_results(results, str(file))
    return dict(results)


def find_results(paths: Iterable[str | Path]) -> list[Path]:
    """The results.json files in these run directories, or in any folder below them, sorted.

    A file that is reached by two of the paths is listed once: it is one run, not two seeds.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        files = [path] if path.is_file() else sorted(path.rglob(FILE_NAME))
        if not files:
            raise RememberingError(
                f"there is no {FILE_NAME} in {path}; give the output folder of `remember run`"
            )
        for file in files:
            found.setdefault(file.resolve(), file)
    return [found[key] for key in sorted(found)]


def load_groups(paths: Iterable[str | Path]) -> list[Group]:
    """All results under these paths, grouped over seeds, in a stable order."""
    together: dict[tuple[Any, ...], list[tuple[Results, Path]]] = {}
    for file in find_results(paths):
        results = load_results(file)
        key = tuple(results[name] for name in ("experiment", "variant", "small", "backbone"))
        together.setdefault(key, []).append((results, file.parent))
    groups = [
        Group.of([results for results, _ in runs], [folder for _, folder in runs])
        for runs in together.values()
    ]
    return sorted(groups, key=_order)


@dataclass(frozen=True)
class Statistic:
    """A mean over seeds, with the sample standard deviation when there is more than one."""

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Statistic | None:
        """Over the values that exist; None when there is none.

        >>> Statistic.of([0.25, None, 0.75, 0.5])
        Statistic(mean=0.5, deviation=0.25, n=3)
        """
        known = [value for value in values if value is not None]
        if not known:
            return None
        deviation = statistics.stdev(known) if len(known) > 1 else None
        return cls(statistics.fmean(known), deviation, len(known))


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed. Make one with `Group.of`."""

    results: tuple[Results, ...]
    folders: tuple[Path, ...] = ()

    @classmethod
    def of(cls, results: Sequence[Results], folders: Sequence[Path] = ()) -> Group:
        """Sort by seed, after checking that these are runs of one setting with different seeds."""
        if not results:
            raise RememberingError("a group of results is empty; give at least one result")
        first = results[0]
        for other in results[1:]:
            for key, value in _setting(first).items():
                if _setting(other)[key] != value:
                    raise RememberingError(
                        f"results of '{first['experiment']}' differ in {key} ({value!r} and "
                        f"{_setting(other)[key]!r}) and cannot be averaged; "
                        "report them from separate folders"
                    )
        seeds = [result["seed"] for result in results]
        if len(set(seeds)) < len(seeds):
            twice = next(seed for seed in seeds if seeds.count(seed) > 1)
            raise RememberingError(
                f"seed {twice} of {_name(first)} was found twice; "
                "leave one of the two run directories out"
            )
        order = sorted(range(len(seeds)), key=seeds.__getitem__)
        return cls(
            tuple(results[i] for i in order), tuple(folders[i] for i in order) if folders else ()
        )

    @property
    def first(self) -> Results:
        """The run with the lowest seed, for what is the same in all of them."""
        return self.results[0]

    @property
    def experiment(self) -> str:
        return str(self.first["experiment"])

    @property
    def variant(self) -> str | None:
        variant: str | None = self.first["variant"]
        return variant

    @property
    def small(self) -> bool:
        return bool(self.first["small"])

    @property
    def backbone(self) -> str:
        return str(self.first["backbone"])

    @property
    def description(self) -> str:
        return str(self.first["description"])

    @property
    def compared(self) -> str:
        """Kind of the router that is compared with, if there is one."""
        compared = self.first.get("compared")
        return str(compared["router"]["kind"]) if compared else ""

    @property
    def published(self) -> dict[str, Any] | None:
        """What the paper prints for this experiment, in percent."""
        published: dict[str, Any] | None = self.first["published"]
        return published

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(result["seed"] for result in self.results)

    @property
    def units(self) -> tuple[str, ...]:
        """From the single image to the whole task."""
        return tuple(sorted(self.first["units"], key=unit_size))

    @property
    def task_count(self) -> int:
        return len(self.first["tasks"])

    @property
    def baselines(self) -> tuple[str, ...]:
        """Every baseline that at least one seed has run, joint training first."""
        names = {name for result in self.results for name in result["baselines"]}
        known = [name for name in ("joint", "finetune") if name in names]
        return (*known, *sorted(names.difference(known)))

    @property
    def title(self) -> str:
        """The experiment, its variant, and whether it is the small version."""
        return _name(self.first)

    @property
    def settings(self) -> str:
        """What must stand beside every accuracy: backbone, data, tasks, router, seeds."""
        layers = self.first["router"].get("layers")
        depth = ""
        if isinstance(layers, list | tuple) and layers:
            noun = "layer" if len(layers) == 1 else "layers"
            depth = f" on {noun} {', '.join(map(str, layers))}"
        return (
            f"backbone {self.backbone}, data {self.first['data']} at "
            f"{self.first['image_size']}×{self.first['image_size']} px, "
            f"{count(self.task_count, 'task')}, router {self.first['router']['kind']}{depth}, "
            f"{self.seed_list}"
        )

    @property
    def short_settings(self) -> str:
        """The same for a cell of a table or below the title of a plot."""
        return (
            f"{self.backbone}; {self.first['data']}, {self.first['image_size']} px; "
            f"{count(self.task_count, 'task')}; {self.seed_list}"
        )

    @property
    def seed_list(self) -> str:
        return f"{'seed' if len(self.seeds) == 1 else 'seeds'} {', '.join(map(str, self.seeds))}"

    @property
    def command(self) -> str:
        """The command that runs this experiment (with all its variants) again."""
        words = ["remember", "run", " ".join(self.experiment.split())]
        words += ["--small"] if self.small else []
        return shlex.join([*words, "--seeds", ",".join(map(str, self.seeds))])

    @property
    def slug(self) -> str:
        """A name for files and anchors, whatever the experiment is called."""
        parts = [self.experiment, self.variant or "", "small" if self.small else "", self.backbone]
        words = (re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)
        return "-".join(word for word in words if word) or "results"

    def statistic(self, *keys: str) -> Statistic | None:
        """Over seeds, the number at this place of the results: `statistic("accuracy", "task")`."""
        return Statistic.of(_at(result, keys) for result in self.results)

    def curve(self, *keys: str) -> tuple[Statistic | None, ...]:
        """Over seeds, the list at this place of the results, one statistic per learned task."""
        series = [values for result in self.results if (values := _at(result, keys)) is not None]
        return tuple(Statistic.of(column) for column in zip(*series, strict=True))


def unit_size(unit: str) -> float:
    """How many images one routing decision is made for; orders the units.

    >>> unit_size("sample"), unit_size("group_32"), unit_size("task")
    (1, 32.0, inf)
    """
    if unit == "sample":
        return 1
    return float("inf") if unit == "task" else float(unit.removeprefix("group_"))


def count(number: int, noun: str) -> str:
    """A number and its noun: 1 task, 2 tasks."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _setting(results: Results) -> dict[str, Any]:
    """What must be equal for two runs to be the same thing under another seed."""
    keys = ("experiment", "variant", "small", "backbone", "data", "image_size")
    return {key: results[key] for key in keys} | {
        "router": results["router"]["kind"],
        "units": sorted(results["units"]),
        "number of tasks": len(results["tasks"]),
    }


def _name(results: Results) -> str:
    variant = f", {results['variant']}" if results["variant"] else ""
    return f"{results['experiment']}{variant}{' (small)' if results['small'] else ''}"


def _at(results: Results, keys: Sequence[str]) -> Any:
    value: Any = results
    for key in keys:
        value = None if value is None else value.get(key)
    return value


def _order(group: Group) -> tuple[Any, ...]:
    """By experiment, full size before small; variants with the numbers in them counted down."""
    parts = re.split(r"(\d+)", group.variant or "")
    variant = tuple((0, -int(p), "") if p.isdigit() else (1, 0, p) for p in parts)
    return (group.experiment, group.small, group.backbone, variant)


def _no_constant(name: str) -> float:
    raise ValueError(f"it contains {name}, which is not a number")
