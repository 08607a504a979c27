"""Results with numbers that are easy to check by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from remembering.config import RouterSettings, Settings
from remembering.evaluation.scores import AnswerSummary
from remembering.experiments.result import (
    RESULTS,
    VERSION,
    MethodInfo,
    NoveltyResult,
    RouterResult,
    RoutingResult,
    RunResult,
    TaskInfo,
    UnitResult,
    write_result,
)
from remembering.experiments.spec import Experiment, RunConfig, StreamSettings
from remembering.learner import Footprint

UNITS = {"sample": 0.61, "group_32": 0.87, "group_128": 0.95, "task": 0.97}
ROUTED = {"sample": 0.62, "group_32": 0.88, "group_128": 0.96, "task": 1.0}
PAPER = RouterSettings(kind="autoencoder", layers=(0,), tokens="mean")
GAUSSIAN = RouterResult(
    RouterSettings(layers=(1, 2), tokens="moments"),
    "negative log-likelihood",
    ((-1.0, 2.0), (3.0, -4.0)),
)
"""The default router after two tasks."""
ANSWERS = AnswerSummary.of([0, 0, 1], [0, 0, 0])


def falling(start: float, end: float, tasks: int) -> tuple[float, ...]:
    """Return numbers that fall evenly from the first task to the last."""
    return tuple(round(start + (end - start) * i / max(tasks - 1, 1), 4) for i in range(tasks))


def unit_result(
    after: Sequence[float | None], routed: float | None = None, forgetting: float | None = 0.123
) -> UnitResult:
    """Return a result whose matrix has the same accuracy for all tasks."""
    tasks = len(after)
    matrix = [[value if j <= i else None for j in range(tasks)] for i, value in enumerate(after)]
    result = UnitResult.of(matrix, [ANSWERS] * tasks, routed)
    measured = tasks > 1 and None not in after
    return replace(result, forgetting=forgetting if measured else None)


def routing_result(tasks: int, **changes: Any) -> RoutingResult:
    """Return measurements of routing; keyword arguments replace fields."""
    scores = tuple(
        tuple(0.20 + 0.07 * abs(i - j) + 0.01 * j for j in range(tasks)) for i in range(tasks)
    )
    result = RoutingResult(
        router=RouterResult(PAPER, "reconstruction error", scores),
        oracle_after=falling(1.0, 0.98, tasks),
        ablated_after=falling(1.0, 0.44, tasks),
        novelty=NoveltyResult(0.05, (0.05,) * tasks, (*(0.9,) * (tasks - 1), None)),
    )
    return replace(result, **changes)


def make_config(method: str = "model", seed: int = 0, **changes: Any) -> RunConfig:
    """Return a configuration; `data`, `epochs` and `description` change its settings."""
    settings = Experiment(
        description=changes.pop("description", "CIFAR-10 in five tasks of two classes."),
        stream=StreamSettings(source=changes.pop("data", "digits")),
        learning=Settings(seed=seed, epochs=changes.pop("epochs", 10)),
    )
    config = RunConfig("cifar10-5", method, settings, small=True)
    config = replace(config, **changes)
    words = ("run", config.experiment, *(["--small"] if config.small else []))
    return config if config.command else replace(config, command=words)


def make_result(tasks: int = 5, seed: int = 0, **changes: Any) -> RunResult:
    """Return the result of a model; keyword arguments replace fields of result or config."""
    known = RunResult.__dataclass_fields__
    config = make_config(seed=seed, **{k: v for k, v in changes.items() if k not in known})
    result = RunResult(
        version=VERSION,
        config=config,
        method=MethodInfo("Remembering Transformer", "A paper", "adapters", "Ours"),
        backbone="bundled",
        image_size=28,
        tasks=tuple(
            TaskInfo(f"digits {2 * i}-{2 * i + 1}", (2 * i, 2 * i + 1), 280, 80, i)
            for i in range(tasks)
        ),
        units={
            unit: unit_result(falling(1.0, value, tasks), ROUTED[unit])
            for unit, value in UNITS.items()
        },
        footprint=Footprint(
            parameters=23_100,
            bytes=494_000,
            trained=21_130,
            replay_images=512,
            replay_bytes=401_408,
            adapters=20_480,
            heads=650,
            routers=1_970,
        ),
        seconds=42.5,
        seconds_learning=(4.2,) * tasks,
        images_per_second=100.0,
        data_sha256="0123abcd",
        environment={"python": "3.11.7", "torch": "2.8.0", "threads": 2},
        routing=routing_result(tasks),
    )
    return replace(result, **{k: v for k, v in changes.items() if k in known})


def make_baseline(
    name: str, after: Sequence[float | None], seed: int = 0, **changes: Any
) -> RunResult:
    """Return the result of a baseline; keyword arguments replace fields of result or config."""
    changes.setdefault("method", MethodInfo(name.upper(), "Somebody (2020), A title", "little"))
    changes.setdefault("units", {"sample": unit_result(after, forgetting=0.1)})
    result = make_result(len(after), seed, routing=None, **changes)
    tasks = tuple(replace(task, adapter=None) for task in result.tasks)
    return replace(result, config=replace(result.config, method=name), tasks=tasks)


def published_model(seed: int = 0, tasks: int = 5, **changes: Any) -> RunResult:
    """Return the result of the paper's configuration, run beside a model."""
    units = {
        "sample": unit_result(falling(1.0, 0.3, tasks), 0.31),
        "task": unit_result(falling(1.0, 0.9, tasks), 1.0),
    }
    scores = tuple(tuple(float(i != j) for j in range(tasks)) for i in range(tasks))
    router = RouterResult(PAPER, "reconstruction error", scores)
    result = make_result(
        tasks,
        seed,
        method=MethodInfo("Ours, as published", "A paper", "adapters", "Ours"),
        units=units,
        routing=routing_result(tasks, router=router),
        **changes,
    )
    return replace(result, config=replace(result.config, method="ours-published"))


def baselines(seed: int = 0, tasks: int = 5, **changes: Any) -> list[RunResult]:
    """Return the results of joint training and fine-tuning."""
    joint = MethodInfo("joint training", "x", "all images")
    finetune = MethodInfo("sequential fine-tuning", "x", "one adapter")
    once: list[float | None] = [*[None] * (tasks - 1), 0.93]
    falls = unit_result(falling(1.0, 0.198, tasks), forgetting=0.81)
    return [
        make_baseline("joint", once, seed, method=joint, **changes),
        make_baseline("finetune", once, seed, method=finetune, units={"sample": falls}, **changes),
    ]


def write_run(folder: Path, *results: RunResult) -> Path:
    """Write results as `remember run` does: the model first, then its baselines."""
    for result in results:
        method = result.config.method
        place = folder if method == "model" else folder / "baselines" / method
        place.mkdir(parents=True)
        write_result(place / RESULTS, result)
    return folder


def write_comparison(folder: Path, results: Sequence[RunResult]) -> Path:
    """Write results as `remember compare` does."""
    for result in results:
        place = folder / result.config.method / f"seed-{result.seed}"
        place.mkdir(parents=True)
        write_result(place / RESULTS, result)
    return folder
