"""The evaluator: scores a learner on all tasks of a stream that it has learned so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.streams.stream import TaskData
from remembering.data.task import Task
from remembering.evaluation.metrics import accuracy
from remembering.evaluation.scores import AnswerSummary, Score, TaskScore
from remembering.evaluation.units import groups, unit_size
from remembering.inference.classify import (
    AdapterOutputs,
    Classified,
    adapter_outputs,
    answer,
    classify_outputs,
)
from remembering.inference.predict import router_features
from remembering.inference.prediction import choose_tasks
from remembering.learner import Learner
from remembering.model import RememberingTransformer
from remembering.runtime.distributed import current
from remembering.runtime.progress import SILENT, Progress, Step
from remembering.state import ModelState

FALSE_ALARM_RATE = 0.05


class Evaluator:
    """Scores a learner after each task of a stream.

    Baselines are scored on single images. For a Remembering Transformer, routing and novelty are
    scored as well. Router features and adapter outputs of a test image are computed once and
    reused until the adapter changes, so the scores are those of `predict` at a lower cost.

    Args:
        units: Routing units to report. Baselines answer each image alone.

    Raises:
        RememberingError: If a unit is unknown.
    """

    def __init__(self, units: Sequence[str] = ("sample",)):
        for unit in units:
            unit_size(unit)
        self.units = tuple(units)
        self._cache = _Cache()

    def score(
        self, learner: Learner, stream: Sequence[TaskData], progress: Progress = SILENT
    ) -> Score:
        """Score a learner on the test images of all tasks learned so far.

        Args:
            learner: Has learned the first tasks of the stream.
            stream: All tasks. Those to come measure novelty detection.
            progress: Reports the number of images done.
        """
        tests = [data.test for data in stream]
        with progress.track("evaluating", sum(map(len, tests))) as step:
            if isinstance(learner, RememberingTransformer):
                model = _Evaluation(learner.state, learner.backbone, tests, self._cache)
                return model.score(self.units, step)
            scores = []
            for test in tests[: learner.learned]:
                answers = learner.predict(test.images).labels
                summary = AnswerSummary.of(answers, test.labels)
                scores.append(
                    TaskScore({"sample": accuracy(answers, test.labels)}, {"sample": summary})
                )
                step(len(test))
        return Score(tuple(scores))


@dataclass
class _Cache:
    """What was computed of test images: router features by task, outputs by adapter and task."""

    features: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[tuple[int, int], tuple[Tensor, AdapterOutputs]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Evaluation:
    """The evaluation of one state."""

    state: ModelState
    backbone: Backbone
    tests: Sequence[Task]
    cache: _Cache

    def score(self, units: Sequence[str], step: Step) -> Score:
        known, p_values = [], []
        for j, test in enumerate(self.tests):
            scores = self._router_scores(j)
            alone = self._classified(j, self.state.gate[choose_tasks(scores)])
            p_values.append(self._p_values(j, alone))
            if j < len(self.state.tasks):
                known.append(self._score_task(j, units, scores, alone))
            step(len(test))
        return Score(tuple(known), *_novelty(p_values, len(self.state.tasks)))

    def _score_task(
        self, j: int, units: Sequence[str], scores: Tensor, alone: Classified
    ) -> TaskScore:
        state, test = self.state, self.tests[j]
        position = {label: i for i, label in enumerate(state.classes)}
        targets = torch.tensor([position[label] for label in test.labels])
        by_unit, answers, routed = {}, {}, {}
        for unit in units:
            numbers = None if unit == "sample" else torch.tensor(groups(unit, len(test)))
            chosen = choose_tasks(scores, numbers)
            classified = alone if numbers is None else self._classified(j, state.gate[chosen])
            probabilities, tasks = answer(state, replace(classified, tasks=chosen), numbers)
            best = probabilities.argmax(1)
            by_unit[unit] = _fraction(best == targets)
            labels = [state.classes[i] for i in best.tolist()]
            answers[unit] = AnswerSummary.of(labels, test.labels)
            routed[unit] = _fraction(tasks == j)
        every = torch.stack([self._probabilities(j, number) for number in state.adapters])
        given = list(state.adapters).index(state.tasks[j].adapter)
        confident = every.max(2).values.argmax(0)  # (images,)
        return TaskScore(
            by_unit,
            answers,
            routed,
            oracle=_fraction(every[given].argmax(1) == targets),
            ablated=_fraction(every[confident, torch.arange(len(test))].argmax(1) == targets),
            router_scores=tuple(scores.mean(0).tolist()),
        )

    def _probabilities(self, j: int, adapter: int) -> Tensor:
        """Return the probabilities of all images of a task under one adapter."""
        adapters = torch.full((len(self.tests[j]),), adapter)
        return answer(self.state, self._classified(j, adapters))[0]

    def _classified(self, j: int, adapters: Tensor) -> Classified:
        outputs = {number: self._outputs(number, j) for number in adapters.unique().tolist()}
        return classify_outputs(self.state, outputs, adapters)

    def _outputs(self, number: int, j: int) -> AdapterOutputs:
        """Return what one adapter computes of the images of a task, cached while it is the same."""
        weights = self.state.adapters[number].b
        cached = self.cache.outputs.get((number, j))
        if cached is None or not torch.equal(cached[0], weights):
            images = self.tests[j].images
            outputs = adapter_outputs(self.state, self.backbone, images, number, current())
            cached = self.cache.outputs[number, j] = weights, outputs
        return cached[1]

    def _router_features(self, j: int) -> Tensor:
        if j not in self.cache.features:
            images = self.tests[j].images
            self.cache.features[j] = router_features(
                self.state, self.backbone, images, distributed=current()
            )
        return self.cache.features[j]

    def _router_scores(self, j: int) -> Tensor:
        return self.state.router.scores(self._router_features(j)).cpu()

    def _p_values(self, j: int, classified: Classified) -> Tensor:
        if classified.novelty is not None:
            return classified.novelty
        return self.state.router.novelty(self._router_features(j)).cpu()


def _novelty(p_values: Sequence[Tensor], learned: int) -> tuple[float, float | None]:
    """Return the false-alarm rate on learned tasks, and the AUROC of tasks to come."""
    known = torch.cat(list(p_values[:learned]))
    false_alarms = _fraction(known <= FALSE_ALARM_RATE)
    if learned == len(p_values):
        return false_alarms, None
    every = torch.cat(list(p_values))
    is_new = torch.arange(len(every)) >= len(known)
    return false_alarms, float(roc_auc_score(is_new, -every))


def _fraction(correct: Tensor) -> float:
    return correct.float().mean().item()
