"""The result of a run: one method, one stream, one seed. One JSON file, `results.json`.

A record is the same file, compressed: `*-seed-N.json.gz` (see `report.records`).

`RunResult` is the format. `read_result` rejects everything else, and
`schema.json_schema(RunResult)` describes it for other programs. Accuracies are fractions; those of
a whole stream are means over tasks.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remembering import schema
from remembering.config import RouterSettings
from remembering.errors import RememberingError
from remembering.evaluation.metrics import Matrix, accuracy_after, forgetting, mean
from remembering.evaluation.scores import AnswerSummary
from remembering.evaluation.units import unit_size
from remembering.experiments.spec import RunConfig
from remembering.learner import Footprint
from remembering.runtime.files import write_atomic
from remembering.runtime.reading import read_json
from remembering.schema import Count, Rate

VERSION = 4
RESULTS = "results.json"
RECORDS = "*-seed-*.json.gz"

Rates = tuple[Rate | None, ...]


@dataclass(frozen=True)
class MethodInfo:
    """What tables show of a method.

    Attributes:
        title: Name in tables.
        reference: The publication.
        stores: What the method keeps, in a sentence.
        published: Its row in the paper's Table 1, if it has one.
        options: All options of the method and their values.
    """

    title: str
    reference: str
    stores: str
    published: str | None = None
    options: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskInfo:
    """A task of the stream; `train` and `test` are numbers of images.

    Attributes:
        adapter: Number of the adapter that serves the task after the last one, if there are any.
    """

    name: str
    classes: tuple[str | int, ...]
    train: Count
    test: Count
    adapter: Count | None = None


@dataclass(frozen=True)
class UnitResult:
    """Accuracy under one routing unit.

    Attributes:
        accuracy: After the last task.
        accuracy_after: After each task, over the tasks learned so far; None if not evaluated.
        matrix: Row i: after learning task i. Column j: on task j, None if not measured.
        answers: Summary of the answers to the test images of each task, after the last task.
        average: Mean of `accuracy_after`; None if evaluated after the last task only.
        forgetting: See `metrics.forgetting`.
        routing_accuracy: Fraction of images routed to their task, after the last task.
    """

    accuracy: Rate
    accuracy_after: Rates
    matrix: tuple[Rates, ...]
    answers: tuple[AnswerSummary, ...]
    average: Rate | None = None
    forgetting: float | None = None
    routing_accuracy: Rate | None = None

    @classmethod
    def of(
        cls,
        matrix: Matrix,
        answers: Sequence[AnswerSummary],
        routing_accuracy: float | None = None,
    ) -> UnitResult:
        """Summarize a matrix of accuracies."""
        after = accuracy_after(matrix)
        known = [value for value in after if value is not None]
        return cls(
            accuracy=known[-1],
            accuracy_after=tuple(after),
            matrix=tuple(map(tuple, matrix)),
            answers=tuple(answers),
            average=mean(known) if len(known) == len(after) else None,
            forgetting=forgetting(matrix),
            routing_accuracy=routing_accuracy,
        )


@dataclass(frozen=True)
class RouterResult:
    """A router after the last task.

    Attributes:
        settings: Settings of the router, resolved for the backbone.
        score_name: What `scores` are: negative log-likelihoods or reconstruction errors.
        scores: Row: mean over the test images of task i. Column: expert of task j.
    """

    settings: RouterSettings
    score_name: str
    scores: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class NoveltyResult:
    """Novelty detection after each task.

    Attributes:
        rate: Target false-alarm rate.
        false_alarms: Fraction of test images of learned tasks that are flagged.
        auroc: Of test images of tasks to come against those of learned ones; None after the last.
    """

    rate: Rate
    false_alarms: Rates
    auroc: Rates


@dataclass(frozen=True)
class RoutingResult:
    """What is measured of a model that routes images to adapters.

    Attributes:
        router: The model's router.
        oracle_after: Accuracy with the correct adapter given, after each task.
        ablated_after: Accuracy of the most confident adapter, without a router, after each task.
        novelty: Novelty detection.
    """

    router: RouterResult
    oracle_after: Rates
    ablated_after: Rates
    novelty: NoveltyResult


@dataclass(frozen=True)
class RunResult:
    """The result of one method on one stream under one seed.

    Attributes:
        version: Version of the format.
        config: Settings and command of the run.
        method: The method.
        backbone: Name of the backbone.
        image_size: Its input size in pixels.
        tasks: Tasks in the order learned.
        units: Accuracy by routing unit; `sample` alone for methods without a router.
        footprint: What the method keeps.
        seconds: Duration of the run.
        seconds_learning: Duration of learning each task.
        images_per_second: Speed of prediction.
        data_sha256: Hash of all images and labels.
        environment: Versions, the commit of the code, threads, processes and machine.
        routing: Measurements of models that route images to adapters.
    """

    version: int
    config: RunConfig
    method: MethodInfo
    backbone: str
    image_size: Count
    tasks: tuple[TaskInfo, ...]
    units: dict[str, UnitResult]
    footprint: Footprint
    seconds: float
    seconds_learning: tuple[float, ...]
    images_per_second: float
    data_sha256: str
    environment: dict[str, str | int]
    routing: RoutingResult | None = None

    @property
    def seed(self) -> int:
        """The seed."""
        return self.config.seed

    @property
    def compared(self) -> bool:
        """Whether this is a result of `remember compare`, not of `remember run`."""
        return self.config.command[:1] == ("compare",)

    @property
    def code(self) -> str:
        """The version of the code, with its commit if it was run from a clone."""
        version, commit = (self.environment.get(key, "") for key in ("remembering", "commit"))
        sha, _, changes = str(commit).partition("+")
        return f"{version} {sha[:9]}{changes and ' with changes'}".strip() or "unknown"

    def __post_init__(self) -> None:
        if not self.tasks or not self.units:
            raise RememberingError("a result needs at least one task and one routing unit")
        series: dict[str, Sequence[Any]] = {"seconds_learning": self.seconds_learning}
        units = {f"units.{name}": unit for name, unit in self.units.items()}
        if self.routing:
            series |= {
                "routing.oracle_after": self.routing.oracle_after,
                "routing.ablated_after": self.routing.ablated_after,
                "routing.novelty.auroc": self.routing.novelty.auroc,
                "routing.router.scores": self.routing.router.scores,
            }
        for name, unit in units.items():
            unit_size(name.rpartition(".")[2])
            series |= {
                f"{name}.accuracy_after": unit.accuracy_after,
                f"{name}.matrix": unit.matrix,
                f"{name}.answers": unit.answers,
            }
        _check_lengths(series, len(self.tasks))


def _check_lengths(series: dict[str, Sequence[Any]], tasks: int) -> None:
    """Raise unless each series has one entry per task, and matrices are square."""
    for name, values in series.items():
        for length in (len(values), *(len(v) for v in values if isinstance(v, tuple))):
            if length != tasks:
                raise RememberingError(f"{name} has {length} values for {tasks} tasks")


def read_result(path: Path) -> RunResult:
    """Read a result or a record.

    Raises:
        RememberingError: If the file is missing, damaged, or of another version.
    """
    data = read_json(path)
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        raise RememberingError(
            f"{path} has version {version!r}, this release reads version {VERSION}; run the "
            "experiment again or use the release that wrote it"
        )
    return schema.read(RunResult, data, str(path))


def write_result(path: Path, result: RunResult) -> None:
    """Write a result, atomically; a record, compressed, if the name ends in ".gz".

    Equal results are equal files.
    """
    write_json(path, result)


def write_json(path: Path, value: Any) -> None:
    """Write a dataclass as JSON, atomically; compressed if the name ends in ".gz"."""
    text = json.dumps(schema.write(value), indent=1, allow_nan=False)
    content = f"{text}\n".encode()
    write_atomic(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
