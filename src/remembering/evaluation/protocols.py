"""Routing units: how many images, known to come from one source, choose their adapter together.

- `sample`: each image alone. The only unit called class-incremental accuracy.
- `group_n`: n images of one source. A folder, a burst, a camera.
- `task`: the whole test set of a task, as the paper's published numbers are made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from remembering.config import RouterSettings
from remembering.data.streams.stream import TaskData
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.evaluation.metrics import mean
from remembering.inference.encoding import encode_task
from remembering.inference.prediction import choose
from remembering.model import RememberingTransformer
from remembering.routing import Router, make_router
from remembering.runtime.distributed import Distributed, current
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.seeding import generator


def groups(unit: str, count: int) -> Tensor:
    """Which images of one task's `count` are routed together under a unit.

    >>> groups("group_2", 5)
    tensor([0, 0, 1, 1, 2])
    """
    if unit == "sample":
        return torch.arange(count)
    if unit == "task":
        return torch.zeros(count, dtype=torch.long)
    size = unit.removeprefix("group_")
    if unit == size or not size.isdigit() or int(size) < 1:
        raise RememberingError(f"routing unit '{unit}' is unknown; use sample, group_32 or task")
    return torch.arange(count) // int(size)


@dataclass(frozen=True)
class TaskScore:
    """How one task's test images fared after some task was learned."""

    accuracy: dict[str, float]
    """By unit."""
    routing_accuracy: dict[str, float]
    """By unit: share of images for which the right task was chosen."""
    oracle: float
    """Accuracy with the right adapter given."""
    ablated: float
    """Accuracy without a router: of all adapters' answers the most confident counts."""
    errors: list[float]
    """Mean error under each task's generative model."""
    router_alone: float | None = None
    """Accuracy of the router's own classes, without any task's adapter, if it knows classes."""
    compared: TaskScore | None = None
    """The same adapters, routed by the router that is compared with."""


@dataclass(frozen=True)
class Score:
    """A model's standing after some task, on every task so far."""

    tasks: list[TaskScore]
    false_alarms: float | None = None
    """Share of test images of learned tasks whose novelty p-value is at most `ALARM`."""
    auroc: float | None = None
    """How well ood_score tells images of tasks not yet learned from those of learned ones."""

    def accuracy(self, unit: str) -> float:
        """Mean over tasks (the paper's metric)."""
        return mean([task.accuracy[unit] for task in self.tasks])

    def routing_accuracy(self, unit: str) -> float:
        """Mean over tasks."""
        return mean([task.routing_accuracy[unit] for task in self.tasks])

    @property
    def oracle(self) -> float:
        """Mean over tasks."""
        return mean([task.oracle for task in self.tasks])

    @property
    def ablated(self) -> float:
        """Mean over tasks."""
        return mean([task.ablated for task in self.tasks])

    @property
    def compared(self) -> Score | None:
        """The same adapters, routed by the router that is compared with."""
        tasks = [task.compared for task in self.tasks if task.compared is not None]
        return Score(tasks) if tasks else None

    @property
    def router_alone(self) -> float | None:
        """Mean over tasks."""
        known = [task.router_alone for task in self.tasks if task.router_alone is not None]
        return mean(known) if known else None


ALARM = 0.05
"""The share of known images that may be flagged as unknown."""


class Evaluator:
    """Scores a model after each task of a stream.

    An adapter never changes once learned, nor do the router's feature_adapter, so what an adapter said of a
    test image and what the router saw of it are kept: after each task only the new adapter is run.

    Args:
        units: routing units that are reported.
        compared: a second router, routed by on the same adapters; it learns what is scored.
    """

    def __init__(self, units: tuple[str, ...], compared: RouterSettings | None = None):
        for unit in units:
            groups(unit, 1)  # an unknown unit is refused before anything is learned
        self.units = units
        self._answers: dict[tuple[int, int], Tensor] = {}
        self._features: list[Tensor] = []
        self._compared = make_router(compared) if compared else None
        self._compared_features: list[Tensor] = []

    def score(
        self,
        model: RememberingTransformer,
        stream: tuple[TaskData, ...],
        progress: Progress = SILENT,
    ) -> Score:
        """Standing on the test images of all tasks learned so far."""
        distributed = current()
        tests = [data.test for data in stream[: len(model.tasks)]]
        self._answers = {
            key: value for key, value in self._answers.items() if key[0] in model.adapters
        }
        missing = [
            (adapter, j)
            for adapter in model.adapters
            for j in range(len(tests))
            if (adapter, j) not in self._answers
        ]
        total = sum(len(tests[j]) for _, j in missing)
        with progress.track("evaluating", total) as step:
            for adapter, j in missing:
                self._answers[adapter, j] = model.adapter_logits(
                    tests[j].images, adapter, distributed
                )
                step(len(tests[j]))
        for data in stream[len(self._features) :]:
            self._features.append(model.router_features(data.test.images, distributed=distributed))
        if self._compared:
            self._fit_compared(self._compared, model, stream[: len(tests)], distributed)
        scores = [self._score_task(model, j, test) for j, test in enumerate(tests)]
        return Score(scores, *self._novelty(model, len(tests)))

    def _fit_compared(
        self,
        router: Router,
        model: RememberingTransformer,
        stream: tuple[TaskData, ...],
        distributed: Distributed,
    ) -> None:
        """It sees the frozen backbone; like the model's own, it learns each task once."""
        for j, data in enumerate(stream):
            if j < len(self._compared_features):
                continue
            train, test = (
                encode_task(
                    model.backbone,
                    router,
                    None,
                    0,
                    task.images,
                    keep=False,
                    distributed=distributed,
                ).features
                for task in (data.train, data.test)
            )
            rng = generator(model.settings.seed, "router")
            router.add(j, router.fit(train, data.train.targets, rng, distributed))
            self._compared_features.append(distributed.all_gather(test))

    def _score_task(self, model: RememberingTransformer, j: int, test: Task) -> TaskScore:
        features, images = self._features[j], torch.arange(len(test))
        errors, known = model.router.scores_and_logits(features)
        position = {label: i for i, label in enumerate(model.classes)}
        wanted = torch.tensor([position[label] for label in test.labels])
        answers = torch.zeros(len(model.adapters), len(test), len(position))
        sure = torch.zeros(len(model.adapters), len(test))
        for row, number in enumerate(model.adapters):
            logits = self._answers[number, j]
            columns = [position[label] for label in model.heads[number].classes]
            answers[row][:, columns] = logits.softmax(1)
            sure[row] = logits.max(1).values
        rows = {number: row for row, number in enumerate(model.adapters)}
        gate = torch.tensor([rows[record.adapter] for record in model.tasks])
        right = answers.argmax(2) == wanted  # (adapters, images)
        accuracy, routing_accuracy = {}, {}
        for unit in self.units:
            tasks = choose(errors, groups(unit, len(test)))
            said = answers[gate[tasks], images]
            said = model.combine(said, known, model.gate(tasks), hard_routing=unit != "sample")
            accuracy[unit] = _share(said.argmax(1) == wanted)
            routing_accuracy[unit] = _share(tasks == j)
        own = TaskScore(
            accuracy,
            routing_accuracy,
            oracle=_share(right[gate[j]]),
            ablated=_share(right[sure.argmax(0), images]),
            errors=errors.mean(0).tolist(),
            router_alone=self._router_alone(model, known, test),
        )
        if self._compared is None:
            return own
        errors = self._compared.score(self._compared_features[j]).cpu()
        choices = {unit: choose(errors, groups(unit, len(test))) for unit in self.units}
        compared = replace(
            own,
            accuracy={u: _share(right[gate[tasks], images]) for u, tasks in choices.items()},
            routing_accuracy={u: _share(tasks == j) for u, tasks in choices.items()},
            errors=errors.mean(0).tolist(),
            router_alone=None,
        )
        return replace(own, compared=compared)

    def _router_alone(
        self, model: RememberingTransformer, logits: Tensor | None, test: Task
    ) -> float | None:
        if logits is None:
            return None
        labels = [label for record in model.tasks for label in record.classes]
        said = logits.argmax(1).tolist()
        return mean([float(labels[i] == label) for i, label in zip(said, test.labels, strict=True)])

    def _novelty(
        self, model: RememberingTransformer, learned: int
    ) -> tuple[float | None, float | None]:
        """False alarms on learned tasks, and the AUROC of those to come against them."""
        known = torch.cat(self._features[:learned])
        alarms = _share(model.router.novelty(known) <= ALARM)
        if learned == len(self._features):
            return alarms, None
        new = torch.cat(self._features[learned:])
        strange = [model.router.ood_score(part).cpu() for part in (known, new)]
        truth = torch.arange(len(known) + len(new)) >= len(known)
        return alarms, float(roc_auc_score(truth, torch.cat(strange)))


def _share(right: Tensor) -> float:
    return right.float().mean().item()
