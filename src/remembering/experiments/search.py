"""Selection of the options of methods on held-out training images, and its record.

Test images are not opened. The seeds are none that results use, so class orders differ as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from remembering import schema
from remembering.backbones.backbone import Backbone
from remembering.baselines.features import FeatureCache
from remembering.errors import RememberingError
from remembering.evaluation.metrics import accuracy, mean
from remembering.experiments.methods import Context, find_method
from remembering.experiments.provenance import data_sha256, environment, portable_settings
from remembering.experiments.result import write_json
from remembering.experiments.spec import Experiment, with_seed
from remembering.experiments.stream import make_stream
from remembering.runtime.reading import read_json

HELD_OUT = 30
"""Training images per class on which options are compared."""
FIRST_SEED = 10
"""Smallest seed of a search."""
SELECTED_WITH = {"joint-gaussian": "joint-tuned"}
"""Methods that have the options of another one, because they share its training."""
Options = Mapping[str, float]


@dataclass(frozen=True)
class Trial:
    """One method with some options, learned and tested on training images.

    Attributes:
        method: Name of the method.
        options: Its options that were chosen; the others have their defaults.
        seed: The seed.
        images: Number of images that were learned.
        held_out: Number of images that were predicted.
        accuracy: Mean over the tasks of the share of correct predictions, after the last task.
        seconds: Duration.
        data_sha256: Hash of all of these images.
        commit: The code.
    """

    method: str
    options: dict[str, float]
    seed: int
    images: int
    held_out: int
    accuracy: float
    seconds: float
    data_sha256: str
    commit: str


@dataclass(frozen=True)
class SearchRecord:
    """All trials on one experiment.

    Attributes:
        experiment: Name of the experiment.
        small: Whether its smaller settings were used.
        settings: Its settings, but for the number of images.
        trials: The trials.
    """

    experiment: str
    small: bool
    settings: Experiment
    trials: tuple[Trial, ...] = ()

    def best(self, method: str) -> dict[str, float]:
        """Return the options with the best mean accuracy over seeds; the first of equal ones.

        Only trials with the largest number of images count. See also `SELECTED_WITH`.

        Raises:
            KeyError: If there is no trial of the method.
        """
        method = SELECTED_WITH.get(method, method)
        groups = [group for group in self._over_seeds() if group[0].method == method]
        if not groups:
            raise KeyError(method)
        most = max(group[0].images for group in groups)
        return max((g for g in groups if g[0].images == most), key=_mean)[0].options

    def table(self) -> str:
        """Return all trials as a Markdown table, with the options in bold that `best` returns."""
        name = f"{self.experiment} --small" if self.small else self.experiment
        lines = [
            f"| {name}: method | options | images | seeds | accuracy (%) |",
            "| --- | --- | ---: | --- | ---: |",
        ]
        for group in self._over_seeds():
            first = group[0]
            options = ", ".join(f"{option} = {value:g}" for option, value in first.options.items())
            seeds = ", ".join(str(trial.seed) for trial in group)
            mark = "**" if first.options == self.best(first.method) else ""
            accuracy = f"{mark}{100 * _mean(group):.1f}{mark}"
            lines.append(f"| {first.method} | {options} | {first.images} | {seeds} | {accuracy} |")
        return "\n".join(lines)

    def _over_seeds(self) -> list[list[Trial]]:
        """Group the trials that differ in the seed alone, in the order of the first of each."""
        found: dict[str, list[Trial]] = {}
        for trial in self.trials:
            key = json.dumps([trial.method, trial.images, trial.options], sort_keys=True)
            found.setdefault(key, []).append(trial)
        return list(found.values())


def _mean(trials: Sequence[Trial]) -> float:
    return mean([trial.accuracy for trial in trials])


def record_path(folder: Path, experiment: str, small: bool) -> Path:
    """Return the path of the record of an experiment."""
    return folder / f"search-{experiment.replace('/', '-')}{'-small' if small else ''}.json.gz"


def read_record(path: Path) -> SearchRecord:
    """Read a record."""
    return schema.read(SearchRecord, read_json(path), str(path))


class Search:
    """Trials on one experiment; those that the record contains are not repeated.

    Args:
        name: Name of the experiment.
        experiment: Its settings.
        small: Whether these are its smaller settings.
        path: File of the record; written after each trial.
        report: Called with each trial.
    """

    def __init__(
        self,
        name: str,
        experiment: Experiment,
        small: bool,
        path: Path,
        report: Callable[[Trial], object] = lambda trial: None,
    ):
        self.experiment, self.path, self.report = experiment, path, report
        stream = replace(experiment.stream, per_class=None, test_per_class=None)
        settings = replace(with_seed(experiment, 0), stream=stream, options=(), baselines=())
        fresh = SearchRecord(name, small, portable_settings(settings))
        self.record = read_record(path) if path.exists() else fresh
        if differing := schema.differences(replace(self.record, trials=()), fresh):
            raise RememberingError(
                f"{path} holds a search with other settings ({', '.join(differing)}); remove it or "
                "use another folder"
            )
        self._contexts: dict[int, Context] = {}

    def trial(self, method: str, options: Options, seed: int) -> Trial:
        """Return the trial of a method with some options, run if necessary."""
        context, options = self._context(seed), {k: float(v) for k, v in options.items()}
        images = sum(len(data.train) for data in context.stream.tasks)
        key = method, options, seed, images
        for known in self.record.trials:
            if (known.method, known.options, known.seed, known.images) == key:
                self.report(known)
                return known
        started = time.perf_counter()
        kind = find_method(method)
        learner = kind.new(context, kind.options(options, context.stream))
        for data in context.stream.tasks:
            learner.learn(data.train)
        tests = [data.test for data in context.stream.tasks]
        reached = mean([accuracy(learner.predict(t.images).labels, t.labels) for t in tests])
        trial = Trial(
            method,
            options,
            seed,
            images,
            sum(map(len, tests)),
            round(reached, 6),
            round(time.perf_counter() - started, 1),
            data_sha256(context.stream),
            str(environment().get("commit", "")),
        )
        self.record = replace(self.record, trials=(*self.record.trials, trial))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.record)
        self.report(trial)
        return trial

    def coordinate_search(
        self,
        method: str,
        axes: Mapping[str, Sequence[float]],
        seeds: Sequence[int],
        also: Sequence[str] = (),
    ) -> dict[str, float]:
        """Select one option after the other, each with the best values of those before it.

        Args:
            method: Name of the method.
            axes: Values of each option. The search starts from the first of each.
            seeds: Accuracies are means over these.
            also: Methods that are tried with the same options and do not affect the selection.
        """
        chosen = {name: values[0] for name, values in axes.items()}

        def score(options: Options) -> float:
            reached = []
            for seed in seeds:
                reached.append(self.trial(method, options, seed).accuracy)
                for other in also:
                    self.trial(other, options, seed)
            return mean(reached)

        best = score(chosen)
        for name, values in axes.items():
            for value in values[1:]:
                reached = score(changed := {**chosen, name: value})
                if reached > best:
                    best, chosen = reached, changed
        return chosen

    def _context(self, seed: int) -> Context:
        if seed not in self._contexts:
            experiment = with_seed(self.experiment, seed)
            if self._contexts:
                backbone = next(iter(self._contexts.values())).backbone
            else:
                backbone = Backbone.load(experiment.backbone, experiment.image_size)
            stream = make_stream(experiment, HELD_OUT)
            self._contexts[seed] = Context(experiment, stream, backbone, FeatureCache())
        return self._contexts[seed]
