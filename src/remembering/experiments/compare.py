"""Every method on the same backbone, data and budget, over several seeds.

OUT/
  compare.toml               the experiment, every setting
  left-out.json              methods that cannot be carried over, and why
  METHOD/seed-N.json         the outcome of one method under one seed
  METHOD/seed-N.so-far.json  the standing of one under way, and beside it what it had learned
                             (METHOD/seed-N.task-K); gone when it is done
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from remembering import schema
from remembering.backbones.backbone import Backbone
from remembering.baselines import LEFT_OUT
from remembering.baselines.features import FeatureCache
from remembering.data.images import joined, subset
from remembering.data.streams.stream import Stream
from remembering.errors import RememberingError
from remembering.evaluation.metrics import forgetting, mean
from remembering.experiments.methods import CONTESTANTS, Contestant
from remembering.experiments.methods import options as chosen_options
from remembering.experiments.run import environment, make_stream
from remembering.experiments.spec import Experiment, with_seed
from remembering.report.checks import map_of, number
from remembering.report.comparison import COMPARE, LEFT_OUT_FILE
from remembering.report.outcome import VERSION, load_record
from remembering.runtime.files import remove_unfinished, write_atomic
from remembering.runtime.lock import only_writer
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.seeding import permutation
from remembering.storage.manifest import in_use

TIMED = 256
"""Images that the speed of prediction is measured on."""

Row = list[float | None]


@dataclass
class _Standing:
    """What one method under one seed has to show so far."""

    matrices: dict[str, list[Row]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    @property
    def tasks(self) -> int:
        return len(self.seconds)


def compare(
    name: str,
    experiment: Experiment,
    out: Path,
    methods: Sequence[str],
    seeds: Sequence[int],
    small: bool = False,
    progress: Progress = SILENT,
    options: Mapping[str, Mapping[str, float]] | None = None,
    asked: Sequence[str] = (),
) -> None:
    """Run what is not done yet of every method under every seed, into one folder.

    The same call goes on where an earlier one stopped; other methods and seeds may be added.

    Args:
        name: of the experiment.
        experiment: its settings.
        out: the folder.
        methods: by name (see contestants.py).
        seeds: one run each.
        small: whether these are the experiment's smaller settings.
        progress: who is told.
        options: of methods by name, in place of the experiment's and of their defaults.
        asked: what the command was given beside methods, options and seeds, for the report.

    Raises:
        RememberingError: if the folder is in use, or holds a comparison with other settings.
    """
    usual = chosen_options(experiment.options, list(CONTESTANTS))
    options = {m: usual.get(m, {}) | dict((options or {}).get(m, {})) for m in methods}
    asked = list(asked) or [name, *(["--small"] if small else [])]
    with only_writer(out):
        config = _config(out, name, experiment, small, options)
        remove_unfinished(out)
        runs = [
            _Run(name, with_seed(experiment, seed), out, method, small, options[method], asked)
            for seed in dict.fromkeys(seeds)
            for method in methods
        ]
        spent: dict[str, list[float]] = {}
        for run in runs:
            if run.done:
                spent.setdefault(run.method, []).append(run.outcome()["seconds"])
        if all(run.done for run in runs):
            _note(out, config)
            return
        backbone = Backbone.load(experiment.backbone, experiment.image_size)
        with progress.track(f"comparing on {name}", len(runs)) as step:
            step(sum(run.done for run in runs), _left(runs, spent))
            for seed in dict.fromkeys(seeds):
                left = [run for run in runs if run.seed == seed and not run.done]
                if not left:
                    continue
                stream, cache = make_stream(with_seed(experiment, seed)), FeatureCache()
                for run in left:  # if one cannot work with its options, none begins
                    run.start(backbone, stream, cache)
                _note(out, config)
                for run in left:
                    record = run.finish(backbone, stream, cache, progress)
                    spent.setdefault(run.method, []).append(record["seconds"])
                    time_left = _left(runs, spent)
                    step(1, time_left)
                    standing = f"{sum(run.done for run in runs)} of {len(runs)}"
                    progress.say(_line(record, ", ".join(filter(None, [standing, time_left]))))


@dataclass(frozen=True)
class _Run:
    """One method under one seed."""

    name: str
    experiment: Experiment
    out: Path
    method: str
    small: bool
    given: Mapping[str, float]
    asked: Sequence[str]

    @property
    def seed(self) -> int:
        return self.experiment.learning.seed

    @property
    def path(self) -> Path:
        return self.out / self.method / f"seed-{self.seed}.json"

    @property
    def done(self) -> bool:
        return self.path.is_file()

    def outcome(self) -> dict[str, Any]:
        """What was written when it was done; raises if that was with other options."""
        record = load_record(self.path)
        had = {k: v for k, v in record["options"].items() if k != "memory" or k in self.given}
        if had != _in_force(self.method, self.given):
            raise RememberingError(
                f"{self.path} was made with other options ({_told(had)}, not "
                f"{_told(_in_force(self.method, self.given))}); give another --out"
            )
        return record

    def start(self, backbone: Backbone, stream: Stream, cache: FeatureCache) -> Contestant:
        """Before the first task; raises if the method cannot work with its options."""
        learning, entry = self.experiment.learning, CONTESTANTS[self.method]
        router = self.experiment.compared or learning.router  # for ours, as published
        settings = replace(
            learning, epochs=self.experiment.epochs(len(stream.tasks)), router=router
        )
        return entry.new(backbone, settings, cache, entry.options(self.given, stream))

    def finish(
        self, backbone: Backbone, stream: Stream, cache: FeatureCache, progress: Progress
    ) -> dict[str, Any]:
        """Learn and score the tasks that are not done yet, and write the outcome."""
        started, tasks = time.perf_counter(), stream.tasks
        learner, standing = self._resume(backbone, stream, cache)
        before = sum(standing.seconds)
        for i in range(standing.tasks, len(tasks)):
            last = i == len(tasks) - 1
            clock, saved = time.perf_counter(), cache.saved
            learner.learn(tasks[i].train, last, progress)
            # What the cache saved is charged, or who comes first would seem the slowest.
            seconds = time.perf_counter() - clock + cache.saved - saved
            if learner.every_task or last:
                for unit, found in learner.accuracies(tasks[: i + 1], progress).items():
                    rows = standing.matrices.setdefault(unit, [[None] * len(tasks)] * i)
                    rows.append([*found, *[None] * (len(tasks) - len(found))])
            standing.seconds.append(seconds)
            if learner.every_task and not last:
                self._keep(learner, standing)
        record = self._record(backbone, stream, learner, standing)
        record["seconds"] = before + time.perf_counter() - started
        write_atomic(self.path, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())
        self._remove(keep=None)
        return record

    def _resume(
        self, backbone: Backbone, stream: Stream, cache: FeatureCache
    ) -> tuple[Contestant, _Standing]:
        """What was learned before a stop; damaged or missing counts as nothing learned."""
        entry = CONTESTANTS[self.method]
        remove_unfinished(self.path.parent)
        try:
            data = json.loads(self._so_far.read_text())
            standing = _Standing(data["matrices"], data["seconds"])
            return entry.load(self._state(standing.tasks), backbone, cache), standing
        except (OSError, ValueError, KeyError, TypeError, RememberingError):
            return self.start(backbone, stream, cache), _Standing()

    def _keep(self, learner: Contestant, standing: _Standing) -> None:
        """State first, then the standing that names it, then the old state goes."""
        learner.save(self._state(standing.tasks))
        write_atomic(self._so_far, json.dumps(dataclasses.asdict(standing)).encode())
        self._remove(keep=standing.tasks)

    def _remove(self, keep: int | None) -> None:
        if keep is None:
            self._so_far.unlink(missing_ok=True)
        for old in self.path.parent.glob(f"{self.path.stem}.task-*"):
            if keep is None or old != self._state(keep):
                shutil.rmtree(old) if old.is_dir() else old.unlink()

    @property
    def _so_far(self) -> Path:
        return self.path.with_suffix(".so-far.json")

    def _state(self, tasks: int) -> Path:
        return self.path.with_suffix(f".task-{tasks}")

    def _record(
        self, backbone: Backbone, stream: Stream, learner: Contestant, standing: _Standing
    ) -> dict[str, Any]:
        return {
            "version": VERSION,
            "experiment": self.name,
            "description": self.experiment.description,
            "small": self.small,
            "backbone": Path(backbone.name).name,
            "image_size": backbone.image_size,
            "data": self.experiment.stream.source,
            "seed": self.seed,
            "tasks": len(stream.tasks),
            "method": self.method,
            **dataclasses.asdict(learner.about),
            "given": dict(self.given),
            "asked": list(self.asked),
            "units": {unit: _scores(rows) for unit, rows in standing.matrices.items()},
            "trained": learner.trained,
            "kept": dataclasses.asdict(learner.footprint()),
            "seconds_learning": standing.seconds,
            "images_per_second": _speed(learner, stream),
            "environment": environment(stream),
        }


def _scores(matrix: list[Row]) -> dict[str, Any]:
    """What a matrix of accuracies says; a method asked only once has no course to tell of."""
    after = [
        mean([v for v in row if v is not None]) if row[0] is not None else None for row in matrix
    ]
    whole = all(value is not None for value in after)
    return {
        "accuracy": after[-1],
        "average": mean([value for value in after if value is not None]) if whole else None,
        "forgetting": forgetting(matrix) if whole else None,
        "accuracy_after": after,
        "matrix": matrix,
    }


def _speed(learner: Contestant, stream: Stream) -> float:
    """Images answered in a second, in the better of two tries."""
    images = joined([data.test.images for data in stream.tasks])
    some = subset(images, permutation(len(images), 0, "speed")[:TIMED])
    times = []
    for _ in range(2):
        started = time.perf_counter()
        learner.predict(some)
        times.append(time.perf_counter() - started)
    return len(some) / min(times)


def _config(
    out: Path,
    name: str,
    experiment: Experiment,
    small: bool,
    options: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """What the folder is to say of its settings; raises if outcomes in it have other ones."""
    experiment = replace(with_seed(experiment, 0), options=())
    config = {"name": name, "small": small, "experiment": schema.write(experiment)}
    path = out / COMPARE
    if not path.is_file():
        if in_use(out):
            raise RememberingError(
                f"{out} is not empty and holds no comparison; give another --out"
            )
        return config | {"options": dict(options)}
    try:
        noted = tomllib.loads(path.read_text())
    except ValueError as error:
        raise RememberingError(f"{path} is damaged ({error}); give another --out") from error
    given = noted.get("options", {})
    if not map_of(map_of(number))(given):
        raise RememberingError(f"{path} is damaged (its options); give another --out")
    if not any(
        out.glob("*/seed-*")
    ):  # it only began, perhaps with a mistake: nothing to differ from
        return config | {"options": dict(options)}
    # Settings that are newer than the folder were at their defaults.
    old = schema.write(schema.read(Experiment, noted.get("experiment", {}), str(path)))
    was = {**noted, "experiment": old | {"description": experiment.description}}
    differing = [key for key in config if key != "experiment" and was.get(key) != config[key]]
    differing += _differing(was["experiment"], schema.write(experiment))
    if differing:
        raise RememberingError(
            f"{out} holds a comparison with other settings ({', '.join(differing)}: see {COMPARE});"
            " give another --out"
        )
    for method in options:
        begun = method in given and any((out / method).glob("seed-*"))
        if begun and _in_force(method, given[method]) != _in_force(method, options[method]):
            raise RememberingError(
                f"{out} holds '{method}' with other options "
                f"({_told(given[method])}, not {_told(options[method])}); give another --out"
            )
    return config | {"options": {**given, **options}}


def _note(out: Path, config: Mapping[str, Any]) -> None:
    write_atomic(out / COMPARE, tomli_w.dumps(config).encode())
    left_out = {name: dataclasses.asdict(method) for name, method in LEFT_OUT.items()}
    write_atomic(out / LEFT_OUT_FILE, (json.dumps(left_out, indent=1) + "\n").encode())


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of what differs between two nested settings.

    >>> _differing({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 4, "d": 3}})
    ['b.c']
    """
    found = []
    for key in sorted(one.keys() | other.keys()):
        a, b = one.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += [f"{key}.{inner}" for inner in _differing(a, b)]
        elif a != b:
            found.append(key)
    return found


def _in_force(method: str, given: Mapping[str, float]) -> dict[str, float]:
    """All options of a method but a memory that is not given: its size is the stream's."""
    defaults = {k: v for k, v in CONTESTANTS[method].defaults.items() if k != "memory"}
    return {**defaults, **given}


def _told(options: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in options.items()) or "its defaults"


def _left(runs: Sequence[_Run], spent: Mapping[str, Sequence[float]]) -> str:
    """The time left: what a method took under other seeds, or what methods take on average."""
    known = {method: mean(seconds) for method, seconds in spent.items()}
    remaining = [run.method for run in runs if not run.done]
    if not known or not remaining:
        return ""
    usual = mean(list(known.values()))
    seconds = sum(known.get(method, usual) for method in remaining)
    return f"about {seconds:.0f} s left" if seconds < 90 else f"about {seconds / 60:.0f} min left"


def _line(record: dict[str, Any], standing: str) -> str:
    scores = ", ".join(
        f"{100 * scores['accuracy']:.1f} % ({unit})" for unit, scores in record["units"].items()
    )
    return (
        f"{record['method']}, seed {record['seed']}: {scores} in {record['seconds']:.0f} s; "
        f"{standing}"
    )
