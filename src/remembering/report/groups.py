"""Results over seeds: statistics, and the groups of results that tables and plots show."""

from __future__ import annotations

import re
import shlex
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from remembering import schema
from remembering.errors import RememberingError
from remembering.evaluation.units import unit_size
from remembering.experiments.published import Published, published_for
from remembering.experiments.result import (
    RECORDS,
    RESULTS,
    RoutingResult,
    RunResult,
    read_result,
)

_PACKAGES = ("remembering", "torch", "transformers")
"""Seeds are averaged only over equal versions of these."""


@dataclass(frozen=True)
class Statistic:
    """A mean over seeds, with the sample standard deviation if there is more than one."""

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Statistic | None:
        """Summarize the values that were measured; None if there are none.

        >>> Statistic.of([0.25, None, 0.75, 0.5])
        Statistic(mean=0.5, deviation=0.25, n=3)
        """
        known = [value for value in values if value is not None]
        if not known:
            return None
        deviation = statistics.stdev(known) if len(known) > 1 else None
        return cls(statistics.fmean(known), deviation, len(known))


@dataclass(frozen=True)
class Seeds:
    """Results that differ only in their seed, in the order of seeds. Use `of` to make one."""

    results: tuple[RunResult, ...]

    @classmethod
    def of(cls, results: Iterable[RunResult]) -> Seeds:
        """Sort results by seed.

        Raises:
            RememberingError: If there are none, two have the same seed, or they differ in more
                than the seed.
        """
        ordered = sorted(results, key=lambda result: result.seed)
        if not ordered:
            raise RememberingError("there are no results to average; give at least one")
        first = ordered[0]
        for before, other in pairwise(ordered):
            differing = result_differences(first, other)
            if differing:
                raise RememberingError(
                    f"results of {_title(first)} differ in {', '.join(differing)} and cannot be "
                    "averaged; report them from separate folders"
                )
            if other.seed == before.seed:
                raise RememberingError(
                    f"seed {other.seed} of {_title(first)} ({first.config.method}) was found "
                    "twice; leave one of the two folders out"
                )
        return cls(tuple(ordered))

    @property
    def first(self) -> RunResult:
        """The result with the lowest seed, for everything that all have in common."""
        return self.results[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(result.seed for result in self.results)

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.first.config.method

    @property
    def units(self) -> tuple[str, ...]:
        """Routing units, from the single image to the whole task."""
        return tuple(sorted(self.first.units, key=unit_size))

    def statistic(self, value: Callable[[RunResult], float | None]) -> Statistic | None:
        """Return the statistic of a number of each result."""
        return Statistic.of(value(result) for result in self.results)

    def number(self, value: Callable[[RunResult], float]) -> float:
        """Return the mean of a number that every result has."""
        return statistics.fmean(value(result) for result in self.results)

    def curve(
        self, values: Callable[[RunResult], Sequence[float | None]]
    ) -> tuple[Statistic | None, ...]:
        """Return the statistics of a series of each result, one per learned task."""
        series = [values(result) for result in self.results]
        return tuple(Statistic.of(column) for column in zip(*series, strict=True))

    def accuracy(self, unit: str = "sample") -> Statistic | None:
        """Return the accuracy under a routing unit after the last task."""
        return self.statistic(
            lambda result: result.units[unit].accuracy if unit in result.units else None
        )

    def accuracy_after(self, unit: str = "sample") -> tuple[Statistic | None, ...]:
        """Return the accuracy under a routing unit after each task."""
        return self.curve(lambda result: result.units[unit].accuracy_after)


class ExperimentResults(ABC):
    """Results of one experiment with the same settings; `first` is one of them."""

    @property
    @abstractmethod
    def first(self) -> RunResult:
        """One of the results, for everything that all have in common."""

    @property
    def experiment(self) -> str:
        """Name of the experiment."""
        return self.first.config.experiment

    @property
    def description(self) -> str:
        """What the experiment shows."""
        return self.first.config.settings.description

    @property
    def variant(self) -> str | None:
        """Variant of the experiment."""
        return self.first.config.variant

    @property
    def small(self) -> bool:
        """Whether these are the experiment's smaller settings."""
        return self.first.config.small

    @property
    def backbone(self) -> str:
        """Name of the backbone."""
        return self.first.backbone

    @property
    def title(self) -> str:
        """The experiment, its variant, and whether it is the small version."""
        return _title(self.first)


@dataclass(frozen=True)
class Group(ExperimentResults):
    """An experiment over seeds: the model's results, and those of the baselines beside it."""

    model: Seeds
    baselines: tuple[Seeds, ...] = ()

    @property
    def first(self) -> RunResult:
        """The model's result with the lowest seed."""
        return self.model.first

    @cached_property
    def routing(self) -> tuple[RoutingResult, ...]:
        """What was measured of the model's routing, for each seed."""
        found = [result.routing for result in self.model.results]
        if None in found:
            raise RememberingError(f"the model of {self.title} was evaluated without routing")
        return tuple(routing for routing in found if routing)

    def statistic(self, value: Callable[[RoutingResult], float | None]) -> Statistic | None:
        """Return the statistic of a number of each seed's routing."""
        return Statistic.of(map(value, self.routing))

    def curve(
        self, values: Callable[[RoutingResult], Sequence[float | None]]
    ) -> tuple[Statistic | None, ...]:
        """Return the statistics of a series of each seed's routing, one per learned task."""
        return tuple(map(Statistic.of, zip(*map(values, self.routing), strict=True)))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the model's results."""
        return self.model.seeds

    @property
    def published(self) -> Published | None:
        """What the paper prints for this experiment; shown only next to the paper's router."""
        if self.routing[0].router.settings.kind != "autoencoder":
            return None
        return published_for(self.experiment, self.variant)

    @property
    def units(self) -> tuple[str, ...]:
        """Routing units, from the single image to the whole task."""
        return tuple(sorted(self.first.units, key=unit_size))

    @property
    def task_count(self) -> int:
        """Number of tasks."""
        return len(self.first.tasks)

    @property
    def settings(self) -> str:
        """What an accuracy needs beside it: backbone, data, tasks, router, seeds."""
        router = self.routing[0].router.settings
        noun = "layer" if len(router.layers) == 1 else "layers"
        depth = f" on {noun} {', '.join(map(str, router.layers))}" if router.layers else ""
        return f"{describe(self.first)}, router {router.kind}{depth}, {seed_list(self.seeds)}"

    @property
    def short_settings(self) -> str:
        """The settings for a cell of a table or the subtitle of a plot."""
        return short_settings(self.first, self.seeds)

    @property
    def command(self) -> str:
        """The command that runs this experiment, with all its variants, again."""
        return command_line(self.first, "--seeds", ",".join(map(str, self.seeds)))

    @property
    def slug(self) -> str:
        """A name for files and anchors."""
        return slug(self.experiment, self.variant or "", "small" * self.small, self.backbone)


def find_results(paths: Iterable[str | Path]) -> list[Path]:
    """Return the results and records in some folders and below them, sorted, each once.

    Raises:
        RememberingError: If a path does not exist.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise no_results([path])
        files = [path] if path.is_file() else [*path.rglob(RESULTS), *path.rglob(RECORDS)]
        found |= {file.resolve(): file for file in files}
    return [found[key] for key in sorted(found)]


def no_results(paths: Iterable[str | Path]) -> RememberingError:
    """Return the error that some folders contain no results."""
    return RememberingError(
        f"there is no {RESULTS} and no record in {', '.join(map(str, paths))}; give the folder of "
        "a finished `remember run` or `remember compare`"
    )


def load_results(paths: Iterable[str | Path]) -> list[RunResult]:
    """Read all results and records in some folders and below them."""
    return [read_result(path) for path in find_results(paths)]


def result_differences(one: RunResult, other: RunResult) -> list[str]:
    """Return the names of what differs between results that are to be averaged over seeds."""
    found = schema.differences(one.config.comparable(), other.config.comparable())
    found = [name.removeprefix("settings.") for name in found]
    found += [
        f"version of {name}"
        for name in _PACKAGES
        if one.environment.get(name) != other.environment.get(name)
    ]
    for name in ("backbone", "image_size"):
        if getattr(one, name) != getattr(other, name) and name not in found:
            found.append(name)
    if len(one.tasks) != len(other.tasks):
        found.append("number of tasks")
    return found


def describe(result: RunResult) -> str:
    """Return backbone, data and number of tasks of a result."""
    return (
        f"backbone {result.backbone}, data {result.config.settings.stream.source} at "
        f"{result.image_size}×{result.image_size} px, {count(len(result.tasks), 'task')}"
    )


def short_settings(result: RunResult, seeds: Sequence[int]) -> str:
    """Return backbone, data, number of tasks and seeds, for a cell or a subtitle."""
    return (
        f"{result.backbone}; {result.config.settings.stream.source}, {result.image_size} px; "
        f"{count(len(result.tasks), 'task')}; {seed_list(seeds)}"
    )


def code_text(methods: Iterable[Seeds]) -> str:
    """Return a sentence with the versions of the code that made some results."""
    versions = sorted({result.code for seeds in methods for result in seeds.results})
    return f"Code: {', '.join(versions)}."


def seed_list(seeds: Sequence[int]) -> str:
    """Return seeds in words: seed 0; seeds 0, 1, 2."""
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def count(number: int, noun: str) -> str:
    """Return a number and its noun: 1 task, 2 tasks."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def command_line(result: RunResult, *words: str) -> str:
    """Return the command of a result with further words, quoted for a shell, on one line."""
    return shlex.join(" ".join(w.split()) for w in ("remember", *result.config.command, *words))


def slug(*parts: str) -> str:
    """Return a name for files and anchors, made from any text."""
    words = (re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)
    return "-".join(word for word in words if word) or "results"


def _title(result: RunResult) -> str:
    config = result.config
    variant = f", {config.variant}" if config.variant else ""
    return f"{config.experiment}{variant}{' (small)' if config.small else ''}"
