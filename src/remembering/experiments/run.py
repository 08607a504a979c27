"""Run an experiment: a stream is learned, scored after each task, and written down.

OUT/
  config.toml     every setting
  model/          the model (see store.py)
  scores.json     standing after each task so far; what --resume goes on from
  results.json    the outcome (report/results.schema.json)
  progress.safetensors    the task under way; gone when it is learned
  logs/           what a tracker that writes files was told

Of several processes, all learn and evaluate, and the main one writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import platform
import time
import tomllib
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w
import torch

from remembering import __version__, schema
from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES
from remembering.baselines.base import accuracy
from remembering.data.sources import load
from remembering.data.streams.permute import permute
from remembering.data.streams.sequence import sequence
from remembering.data.streams.split import split
from remembering.data.streams.stream import Stream, limit
from remembering.errors import RememberingError
from remembering.evaluation.metrics import forgetting, mean
from remembering.evaluation.protocols import ALARM, Evaluator, Score, TaskScore
from remembering.experiments.methods import CONTESTANTS, options
from remembering.experiments.spec import Experiment
from remembering.inference.token_cache import batches
from remembering.learning.checkpoint import NAME as PROGRESS
from remembering.learning.checkpoint import Checkpoint
from remembering.model import RememberingTransformer
from remembering.report.published import published_for
from remembering.runtime.distributed import Distributed, current
from remembering.runtime.files import remove_unfinished, write_atomic
from remembering.runtime.lock import only_writer
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.tracking import check_tracker, tracked
from remembering.storage.manifest import in_use, is_model

CONFIG, SCORES, RESULTS, MODEL = "config.toml", "scores.json", "results.json", "model"
LOGS = "logs"


@dataclass
class _Done:
    """What a run has to show so far."""

    scores: list[Score] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    baselines: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        text = json.dumps(dataclasses.asdict(self), allow_nan=False)
        write_atomic(path, text.encode())

    @classmethod
    def read(cls, path: Path) -> _Done:
        try:
            data = json.loads(path.read_text())
            scores = [
                Score([_task_score(task) for task in s["tasks"]], s["false_alarms"], s["auroc"])
                for s in data["scores"]
            ]
            return cls(scores, data["seconds"], data["baselines"])
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RememberingError(f"{path} is damaged ({error}); start the run anew") from error


def _task_score(data: dict[str, Any]) -> TaskScore:
    compared = data.pop("compared")
    return TaskScore(**data, compared=TaskScore(**compared) if compared else None)


def run(
    name: str,
    experiment: Experiment,
    out: Path,
    variant: str | None = None,
    small: bool = False,
    resume: bool = False,
    save_steps: int = 0,
    progress: Progress = SILENT,
    tracker: str | None = None,
) -> dict[str, Any]:
    """Run one experiment with one seed into a folder of its own; returns results.json.

    Args:
        tracker: one of accelerate's, by name, that is told losses and accuracies.

    Raises:
        RememberingError: if the folder is in use, or holds a run with other settings.
    """
    distributed = current()
    if tracker:
        check_tracker(tracker)
    with distributed.local_main_first():  # it may have to download them
        stream = make_stream(experiment)
        backbone = Backbone.load(experiment.backbone, experiment.image_size)
    epochs = experiment.epochs(len(stream.tasks))
    model = RememberingTransformer(backbone, replace(experiment.learning, epochs=epochs))
    for baseline in experiment.baselines:
        if baseline not in BASELINES:
            raise RememberingError(
                f"there is no baseline '{baseline}'; known are {', '.join(BASELINES)}"
            )
    usual = options(experiment.options, list(CONTESTANTS))
    compared = experiment.compared and experiment.compared.resolved(backbone.depth)
    evaluator = Evaluator(experiment.units, compared)
    with contextlib.ExitStack() as held:
        distributed.on_main(lambda: held.enter_context(only_writer(out)))
        distributed.on_main(lambda: _open(out, experiment, resume))
        done = _Done.read(out / SCORES)
        if is_model(out / MODEL):
            model = RememberingTransformer.load(out / MODEL)
        if not 0 <= len(model.tasks) - len(done.scores) <= 1:
            raise RememberingError(
                f"{out / SCORES} tells of {len(done.scores)} tasks and {out / MODEL} of "
                f"{len(model.tasks)}; they do not belong together; start anew with another --out"
            )
        distributed.agree((len(done.scores), len(model.tasks)), "number of tasks done")
        told = progress
        if tracker and distributed.main:
            told = held.enter_context(
                tracked(progress, tracker, out / LOGS, name, schema.write(experiment))
            )
        _learn_stream(model, stream, evaluator, done, out, save_steps, told, distributed)
        for baseline in experiment.baselines:
            if baseline not in done.baselines:
                # Every process computes all of it: rivals' callback may look at whole batches.
                given = CONTESTANTS[baseline].options(usual.get(baseline, {}), stream)
                learner = BASELINES[baseline](backbone, model.settings, None, **given)
                done.baselines[baseline] = _run_baseline(learner, stream, progress)
                distributed.on_main(lambda: done.write(out / SCORES))
        return distributed.on_main(
            lambda: _write(out, _results(name, experiment, variant, small, stream, model, done))
        )


def _write(out: Path, results: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(results, indent=1, allow_nan=False) + "\n"
    write_atomic(out / RESULTS, text.encode())
    return results


def _learn_stream(
    model: RememberingTransformer,
    stream: Stream,
    evaluator: Evaluator,
    done: _Done,
    out: Path,
    save_steps: int,
    progress: Progress,
    distributed: Distributed,
) -> None:
    """Learn and score the tasks that are not done yet; a kill at any moment loses no more than
    what came after the last save within the task."""
    checkpoint = Checkpoint(out / PROGRESS, save_steps)
    for number, data in enumerate(stream.tasks):
        if number < len(done.scores):
            continue
        started = time.perf_counter()
        if number == len(model.tasks):
            model.learn(data.train, progress, checkpoint)
            distributed.on_main(lambda: model.save(out / MODEL))
        distributed.on_main(checkpoint.remove)
        seconds = time.perf_counter() - started
        score = evaluator.score(model, stream.tasks, progress)
        for unit in evaluator.units:
            progress.log({f"accuracy/{unit}": score.accuracy(unit)}, number + 1)
            progress.log({f"routing accuracy/{unit}": score.routing_accuracy(unit)}, number + 1)
        progress.log({"accuracy/right adapter given": score.oracle}, number + 1)
        done.scores.append(score)
        done.seconds.append(seconds)
        distributed.on_main(lambda: done.write(out / SCORES))


def make_stream(experiment: Experiment) -> Stream:
    """The tasks of an experiment."""
    wanted, seed = experiment.stream, experiment.learning.seed
    data = Path(wanted.data).expanduser() if wanted.data else None
    sources = [
        limit(load(name.strip(), data), wanted.per_class, wanted.test_per_class, seed)
        for name in wanted.source.split(",")
    ]
    if wanted.kind == "sequence":
        return sequence(sources, seed)
    if len(sources) > 1:
        raise RememberingError(
            f'source = "{wanted.source}" names several data sets; use kind = "sequence"'
        )
    if wanted.kind == "permute":
        return permute(sources[0], wanted.tasks, seed)
    return split(sources[0], wanted.sizes or wanted.tasks, seed)


def read_config(out: Path) -> Experiment:
    """The settings that a run folder was made with."""
    path = out / CONFIG
    try:
        return schema.read(Experiment, tomllib.loads(path.read_text()), str(path))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise RememberingError(f"{path} cannot be read ({error})") from error


def _open(out: Path, experiment: Experiment, resume: bool) -> None:
    if (out / CONFIG).is_file():
        if not resume:
            raise RememberingError(
                f"{out} already holds a run; add --resume to go on with it, or give another --out"
            )
        if read_config(out) != experiment:
            raise RememberingError(
                f"{out} holds a run with other settings ({CONFIG} differs); give another --out"
            )
        remove_unfinished(out)
        return
    if in_use(out):
        raise RememberingError(f"{out} is not empty and holds no run; give another --out")
    remove_unfinished(out)
    write_atomic(out / CONFIG, tomli_w.dumps(schema.write(experiment)).encode())


def _data_hash(stream: Stream) -> str:
    """SHA-256 of every image and label, in the order of the stream."""
    digest = hashlib.sha256()
    for data in stream.tasks:
        for task in (data.train, data.test):
            digest.update(json.dumps(task.labels).encode())
            for index in batches(len(task)):
                for image in task.images[index]:
                    digest.update(image.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _run_baseline(learner: Any, stream: Stream, progress: Progress) -> dict[str, Any]:
    started = time.perf_counter()
    matrix: list[list[float | None]] = []
    last = len(stream.tasks) - 1
    for i, data in enumerate(stream.tasks):
        learner.learn(data.train, progress)
        asked = learner.every_task or i == last
        tests = [task.test for task in stream.tasks[: i + 1]] if asked else []
        row: list[float | None] = [accuracy(learner.predict(t.images), t.labels) for t in tests]
        matrix.append(row + [None] * (len(stream.tasks) - len(row)))
    final = [value for value in matrix[-1] if value is not None]
    return {
        "accuracy": mean(final),
        "accuracy_after": [
            mean([v for v in row if v is not None]) if row[0] is not None else None
            for row in matrix
        ],
        "forgetting": forgetting(matrix) if learner.every_task else None,
        "parameters": learner.footprint().parameters,
        "seconds": time.perf_counter() - started,
    }


def _results(
    name: str,
    experiment: Experiment,
    variant: str | None,
    small: bool,
    stream: Stream,
    model: RememberingTransformer,
    done: _Done,
) -> dict[str, Any]:
    last, units, count = done.scores[-1], experiment.units, len(stream.tasks)
    matrix = (
        [
            [task.accuracy["sample"] for task in score.tasks] + [None] * (count - len(score.tasks))
            for score in done.scores
        ]
        if "sample" in units
        else []
    )
    return {
        "version": 1,
        "experiment": name,
        "variant": variant,
        "description": experiment.description,
        "small": small,
        "backbone": Path(model.backbone.name).name,
        "image_size": model.backbone.image_size,
        "data": experiment.stream.source,
        "seed": experiment.learning.seed,
        "router": schema.write(model.settings.router),
        "combination": model.combination,
        "tasks": [
            {
                "name": record.name,
                "classes": list(record.classes),
                "train": record.images,
                "test": len(data.test),
                "adapter": record.adapter,
            }
            for record, data in zip(model.tasks, stream.tasks, strict=True)
        ],
        "units": list(units),
        "accuracy": {unit: last.accuracy(unit) for unit in units},
        "routing_accuracy": {unit: last.routing_accuracy(unit) for unit in units},
        "oracle_task_accuracy": last.oracle,
        "ablated_accuracy": last.ablated,
        "accuracy_after": {unit: [s.accuracy(unit) for s in done.scores] for unit in units},
        "oracle_after": [score.oracle for score in done.scores],
        "ablated_after": [score.ablated for score in done.scores],
        "accuracy_matrix": matrix,
        "forgetting": forgetting(matrix),
        "router_alone_accuracy": last.router_alone,
        "compared": _compared(experiment, done.scores),
        "novelty": {
            "rate": ALARM,
            "false_alarms": [score.false_alarms for score in done.scores],
            "auroc": [score.auroc for score in done.scores],
        },
        "reconstruction_errors": [task.errors for task in (last.compared or last).tasks],
        "baselines": done.baselines,
        "published": published_for(name, variant),
        "footprint": model.footprint().as_dict(),
        "seconds": sum(done.seconds) + sum(b["seconds"] for b in done.baselines.values()),
        "seconds_learning": done.seconds,
        "environment": environment(stream),
    }


def _compared(experiment: Experiment, scores: list[Score]) -> dict[str, Any] | None:
    """What the router that is compared with reaches on the same adapters."""
    after = [score.compared for score in scores if score.compared is not None]
    if experiment.compared is None or not after:
        return None
    units = experiment.units
    return {
        "router": schema.write(experiment.compared),
        "accuracy": {unit: after[-1].accuracy(unit) for unit in units},
        "routing_accuracy": {unit: after[-1].routing_accuracy(unit) for unit in units},
        "accuracy_after": {unit: [score.accuracy(unit) for score in after] for unit in units},
    }


def environment(stream: Stream) -> dict[str, str | int]:
    """What results depend on beside the settings: versions, threads, processes, machine, data."""
    return {
        "remembering": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "threads": torch.get_num_threads(),
        **current().about(),
        "data_sha256": _data_hash(stream),
        "machine": platform.machine(),
    }
