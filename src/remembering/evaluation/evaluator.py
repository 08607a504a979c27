"""The evaluator: scores a learner on all tasks of a stream that it has learned so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from remembering.config import RouterSettings
from remembering.data.streams.stream import TaskData
from remembering.data.task import Task
from remembering.evaluation.metrics import accuracy
from remembering.evaluation.scores import Score, TaskScore
from remembering.evaluation.units import groups, unit_size
from remembering.inference.encoding import encode_task
from remembering.inference.predict import adapter_logits, combined, router_features
from remembering.inference.prediction import choose_tasks
from remembering.learner import Learner
from remembering.model import RememberingTransformer
from remembering.routing import make_router
from remembering.runtime.distributed import current
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.seeding import generator
from remembering.state import ModelState

FALSE_ALARM_RATE = 0.05


class Evaluator:
    """Scores a learner after each task of a stream.

    Baselines are scored on single images. Of a Remembering Transformer, routing and novelty are
    scored as well. An adapter never changes once it is learned, nor does the feature adapter, so
    the logits of each adapter and the router features of each test image are computed once.

    Args:
        units: Routing units to report. Baselines answer each image alone.
        compared: A second router that routes to the same adapters. It is fitted here.

    Raises:
        RememberingError: If a unit is unknown.
    """

    def __init__(self, units: Sequence[str] = ("sample",), compared: RouterSettings | None = None):
        for unit in units:
            unit_size(unit)
        self.units = tuple(units)
        self._compared = make_router(compared) if compared else None
        self._logits: dict[tuple[int, int], Tensor] = {}
        self._features: list[Tensor] = []
        self._compared_features: list[Tensor] = []

    def score(
        self, learner: Learner, stream: Sequence[TaskData], progress: Progress = SILENT
    ) -> Score:
        """Score a learner on the test images of all tasks learned so far.

        Args:
            learner: Has learned the first tasks of the stream.
            stream: All tasks. Those to come measure novelty detection.
            progress: Reports the number of images done.
        """
        if isinstance(learner, RememberingTransformer):
            return self._score_model(learner, stream, progress)
        tests = [data.test for data in stream[: learner.learned]]
        scores = []
        with progress.track("evaluating", sum(map(len, tests))) as step:
            for test in tests:
                answers = learner.predict(test.images).labels
                scores.append(TaskScore({"sample": accuracy(answers, test.labels)}))
                step(len(test))
        return Score(tuple(scores))

    def _score_model(
        self, model: RememberingTransformer, stream: Sequence[TaskData], progress: Progress
    ) -> Score:
        state, distributed = model.state, current()
        tests = [data.test for data in stream[: len(state.tasks)]]
        self._logits = {key: kept for key, kept in self._logits.items() if key[0] in state.adapters}
        pairs = [(adapter, j) for adapter in state.adapters for j in range(len(tests))]
        missing = [pair for pair in pairs if pair not in self._logits]
        with progress.track("evaluating", sum(len(tests[j]) for _, j in missing)) as step:
            for adapter, j in missing:
                images = tests[j].images
                self._logits[adapter, j] = adapter_logits(
                    state, model.backbone, images, adapter, distributed
                )
                step(len(tests[j]))
        for data in stream[len(self._features) :]:
            self._features.append(
                router_features(state, model.backbone, data.test.images, distributed=distributed)
            )
        if self._compared:
            self._fit_compared(model, stream[: len(tests)])
        scores = tuple(self._score_task(state, j, test) for j, test in enumerate(tests))
        return Score(scores, *self._novelty(state))

    def _fit_compared(self, model: RememberingTransformer, stream: Sequence[TaskData]) -> None:
        """Fit the second router to the tasks that it lacks, on the frozen backbone."""
        distributed = current()
        for j, data in list(enumerate(stream))[len(self._compared_features) :]:
            assert self._compared is not None
            train, test = (
                encode_task(
                    model.backbone,
                    self._compared,
                    None,
                    0,
                    task.images,
                    cache_tokens=False,
                    distributed=distributed,
                ).features
                for task in (data.train, data.test)
            )
            rng = generator(model.settings.seed, "router")
            expert = self._compared.fit(train, data.train.targets, rng, distributed)
            self._compared = self._compared.with_expert(j, expert)
            self._compared_features.append(distributed.all_gather(test))

    def _score_task(self, state: ModelState, j: int, test: Task) -> TaskScore:
        images = torch.arange(len(test))
        scores, class_logits = state.router.scores_and_logits(self._features[j])
        position = {label: i for i, label in enumerate(state.classes)}
        targets = torch.tensor([position[label] for label in test.labels])
        probabilities = torch.zeros(len(state.adapters), len(test), len(position))
        largest = torch.zeros(len(state.adapters), len(test))
        for row, number in enumerate(state.adapters):
            logits = self._logits[number, j]
            columns = [position[label] for label in state.heads[number].classes]
            probabilities[row][:, columns] = logits.softmax(1)
            largest[row] = logits.max(1).values
        rows = {number: row for row, number in enumerate(state.adapters)}
        gate = torch.tensor([rows[record.adapter] for record in state.tasks])
        correct = probabilities.argmax(2) == targets  # (adapters, images)
        by_unit, routed = {}, {}
        for unit in self.units:
            tasks = choose_tasks(scores, groups(unit, len(test)))
            both = combined(
                state,
                probabilities[gate[tasks], images],
                class_logits,
                state.gate[tasks],
                hard_routing=unit != "sample",
            )
            by_unit[unit] = _fraction(both.argmax(1) == targets)
            routed[unit] = _fraction(tasks == j)
        own = TaskScore(
            by_unit,
            routed,
            oracle=_fraction(correct[gate[j]]),
            ablated=_fraction(correct[largest.argmax(0), images]),
            router_alone=_router_alone(state, class_logits, test),
            router_scores=tuple(scores.mean(0).tolist()),
        )
        if self._compared is None:
            return own
        scores = self._compared.scores(self._compared_features[j]).cpu()
        chosen = {unit: choose_tasks(scores, groups(unit, len(test))) for unit in self.units}
        compared = TaskScore(
            {unit: _fraction(correct[gate[tasks], images]) for unit, tasks in chosen.items()},
            {unit: _fraction(tasks == j) for unit, tasks in chosen.items()},
            router_scores=tuple(scores.mean(0).tolist()),
        )
        return replace(own, compared=compared)

    def _novelty(self, state: ModelState) -> tuple[float, float | None]:
        """Return the false-alarm rate on learned tasks, and the AUROC of tasks to come."""
        learned = len(state.tasks)
        known = torch.cat(self._features[:learned])
        false_alarms = _fraction(state.router.novelty(known) <= FALSE_ALARM_RATE)
        if learned == len(self._features):
            return false_alarms, None
        new = torch.cat(self._features[learned:])
        scores = [state.router.ood_scores(part).cpu() for part in (known, new)]
        is_new = torch.arange(len(known) + len(new)) >= len(known)
        return false_alarms, float(roc_auc_score(is_new, torch.cat(scores)))


def _router_alone(state: ModelState, logits: Tensor | None, test: Task) -> float | None:
    if logits is None:
        return None
    columns = [label for record in state.tasks for label in record.classes]
    return accuracy([columns[i] for i in logits.argmax(1).tolist()], test.labels)


def _fraction(correct: Tensor) -> float:
    return correct.float().mean().item()
