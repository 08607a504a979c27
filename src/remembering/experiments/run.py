"""The experiment loop: a learner learns a stream, and is evaluated after each task.

With several processes, all of them learn and evaluate, and the main process writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from remembering.backbones.backbone import Backbone
from remembering.baselines import Baseline
from remembering.baselines.features import FeatureCache
from remembering.data.images import joined, subset
from remembering.data.streams.stream import Stream
from remembering.data.task import Task
from remembering.evaluation.scores import Score, TaskScore
from remembering.experiments.evaluator import FALSE_ALARM_RATE, Evaluator
from remembering.experiments.folder import RunFolder, RunProgress
from remembering.experiments.provenance import data_sha256, environment, portable_settings
from remembering.experiments.result import (
    VERSION,
    MethodInfo,
    NoveltyResult,
    RouterResult,
    RoutingResult,
    RunResult,
    TaskInfo,
    UnitResult,
)
from remembering.experiments.spec import RunConfig
from remembering.learner import Learner
from remembering.learning.checkpoint import Checkpoint
from remembering.model import RememberingTransformer
from remembering.routing import ROUTERS
from remembering.runtime.distributed import current
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.seeding import permutation

TIMED_IMAGES = 256
"""Number of images on which the speed of prediction is measured."""


def run(
    learner: Learner,
    stream: Stream,
    evaluator: Evaluator,
    *,
    config: RunConfig,
    method: MethodInfo,
    backbone: Backbone,
    folder: RunFolder,
    every_task: bool = True,
    keep_state: bool = True,
    save_steps: int = 0,
    cache: FeatureCache | None = None,
    progress: Progress = SILENT,
) -> RunResult:
    """Let a learner learn the tasks of a stream that are not done yet, and write the result.

    Args:
        learner: Has learned the tasks that are done.
        stream: All tasks.
        evaluator: Scores the learner.
        config: What the run was started with.
        method: Description of the learner.
        backbone: The frozen backbone of the learner.
        folder: Holds what is done. A process that is killed loses at most the task in training, or
            the steps since the last checkpoint if the learner can resume within a task.
        every_task: Whether to save and evaluate the learner after each task, or only evaluate it
            after the last.
        keep_state: Whether to keep what the learner saved after the run.
        save_steps: Save a checkpoint every so many steps, besides after each epoch.
        cache: Feature cache of the learner. The time that it saved is added to the time of
            learning, so that the order of methods does not change their times.
        progress: Reports progress, and logs accuracies.
    """
    cache = cache or FeatureCache()
    distributed, done = current(), folder.read_progress()
    distributed.agree((len(done.scores), learner.learned), "number of tasks done")
    started, checkpoint = time.perf_counter(), folder.checkpoint(save_steps)
    about = environment()  # before a long run, during which the clone may change
    for i in range(len(done.scores), len(stream.tasks)):
        last = i == len(stream.tasks) - 1
        clock, saved = time.perf_counter(), cache.saved
        if learner.learned == i:
            _learn(learner, stream.tasks[i].train, checkpoint, progress)
        if last:
            learner.footprint()  # completes training that was deferred
        seconds = time.perf_counter() - clock + cache.saved - saved
        if every_task:
            distributed.on_main(lambda: learner.save(folder.state_path))
        distributed.on_main(checkpoint.remove)
        due = every_task or last
        score = evaluator.score(learner, stream.tasks, progress) if due else Score()
        _log(score, i + 1, progress)
        now = time.perf_counter()
        done = RunProgress(
            (*done.scores, score), (*done.seconds_learning, seconds), done.seconds + now - started
        )
        started = now
        if every_task:
            distributed.on_main(lambda: folder.write_progress(done))  # noqa: B023 (called at once)

    def finish() -> RunResult:
        if isinstance(learner, Baseline):
            learner.cache = None  # or the speed of prediction would be that of the cache
        result = _result(learner, stream, config, method, backbone, done, about)
        result = replace(result, seconds=done.seconds + time.perf_counter() - started)
        return folder.finish(result, keep_state=keep_state)

    return distributed.on_main(finish)


def _learn(learner: Learner, task: Task, checkpoint: Checkpoint, progress: Progress) -> None:
    if isinstance(learner, RememberingTransformer):  # the only learner that resumes within a task
        learner.learn(task, progress=progress, checkpoint=checkpoint)
    else:
        learner.learn(task, progress=progress)


def _log(score: Score, tasks: int, progress: Progress) -> None:
    for unit in score.tasks[0].accuracy if score.tasks else ():
        values = {
            f"accuracy/{unit}": score.mean(_accuracy(unit)),
            f"routing accuracy/{unit}": score.mean(_routing_accuracy(unit)),
        }
        progress.log({name: v for name, v in values.items() if v is not None}, tasks)
    oracle = score.mean(lambda task: task.oracle)
    if oracle is not None:
        progress.log({"accuracy/correct adapter given": oracle}, tasks)


def _result(
    learner: Learner,
    stream: Stream,
    config: RunConfig,
    method: MethodInfo,
    backbone: Backbone,
    done: RunProgress,
    about: dict[str, str | int],
) -> RunResult:
    model = learner if isinstance(learner, RememberingTransformer) else None
    return RunResult(
        version=VERSION,
        config=replace(config, settings=portable_settings(config.settings)),
        method=method,
        backbone=Path(backbone.name).name,
        image_size=backbone.image_size,
        tasks=tuple(
            TaskInfo(
                data.train.name,
                data.train.classes,
                len(data.train),
                len(data.test),
                model.tasks[i].adapter if model else None,
            )
            for i, data in enumerate(stream.tasks)
        ),
        units=_units(done.scores),
        footprint=learner.footprint(),
        seconds=done.seconds,
        seconds_learning=done.seconds_learning,
        images_per_second=_speed(learner, stream),
        data_sha256=data_sha256(stream),
        environment=about,
        routing=_routing(model, done.scores) if model else None,
    )


def _routing(model: RememberingTransformer, scores: Sequence[Score]) -> RoutingResult:
    router, last = model.settings.router, scores[-1].tasks
    return RoutingResult(
        router=RouterResult(
            router, ROUTERS[router.kind].score_name, tuple(task.router_scores for task in last)
        ),
        oracle_after=tuple(score.mean(lambda task: task.oracle) for score in scores),
        ablated_after=tuple(score.mean(lambda task: task.ablated) for score in scores),
        novelty=NoveltyResult(
            FALSE_ALARM_RATE,
            tuple(score.false_alarms for score in scores),
            tuple(score.auroc for score in scores),
        ),
    )


def _units(scores: Sequence[Score]) -> dict[str, UnitResult]:
    """Return the accuracy under each unit."""
    results = {}
    for unit in scores[-1].tasks[0].accuracy:
        matrix = [
            [task.accuracy[unit] for task in score.tasks]
            + [None] * (len(scores) - len(score.tasks))
            for score in scores
        ]
        answers = [task.answers[unit] for task in scores[-1].tasks]
        results[unit] = UnitResult.of(matrix, answers, scores[-1].mean(_routing_accuracy(unit)))
    return results


def _accuracy(unit: str) -> Callable[[TaskScore], float | None]:
    return lambda task: task.accuracy.get(unit)


def _routing_accuracy(unit: str) -> Callable[[TaskScore], float | None]:
    return lambda task: task.routing_accuracy.get(unit)


def _speed(learner: Learner, stream: Stream) -> float:
    """Return the number of images predicted per second, the better of two measurements."""
    images = joined([data.test.images for data in stream.tasks])
    some = subset(images, permutation(len(images), 0, "speed")[:TIMED_IMAGES])
    times = []
    for _ in range(2):
        started = time.perf_counter()
        learner.predict(some)
        times.append(time.perf_counter() - started)
    return len(some) / min(times)
