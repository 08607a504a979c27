"""Routing units: how many images, known to come from one source, choose their adapter together.

- `sample`: each image alone. The only unit called class-incremental accuracy.
- `group_n`: n images of one source. A folder, a burst, a camera.
- `task`: the whole test set of a task, as the paper's published numbers are made.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remembering.errors import RememberingError
from remembering.evaluation.metrics import mean
from remembering.model import RememberingTransformer, choose
from remembering.progress import SILENT, Progress
from remembering.tasks.stream import TaskData
from remembering.tasks.task import Task


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
    """Mean reconstruction error under each task's generative model."""


@dataclass(frozen=True)
class Score:
    """A model's standing after some task, on every task so far."""

    tasks: list[TaskScore]

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


class Evaluator:
    """Scores a model after each task of a stream.

    An adapter never changes once learned, nor does an expert, so what they said of a test image is
    kept: after each task only the new adapter and the new task's images are run.
    """

    def __init__(self, units: tuple[str, ...]):
        for unit in units:
            groups(unit, 1)  # an unknown unit is refused before anything is learned
        self.units = units
        self._answers: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._features: list[Tensor] = []

    def score(
        self,
        model: RememberingTransformer,
        stream: tuple[TaskData, ...],
        progress: Progress = SILENT,
    ) -> Score:
        """Standing on the test images of all tasks learned so far."""
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
                self._answers[adapter, j] = _answers(model, tests[j], adapter)
                step(len(tests[j]))
        for test in tests[len(self._features) :]:
            self._features.append(model.router_features(test.images))
        return Score([self._score_task(model, j, test) for j, test in enumerate(tests)])

    def _score_task(self, model: RememberingTransformer, j: int, test: Task) -> TaskScore:
        errors = model.router.score(self._features[j]).cpu()
        numbers = list(model.adapters)
        right = torch.stack([self._answers[n, j][0] for n in numbers])  # (adapters, images)
        confidence = torch.stack([self._answers[n, j][1] for n in numbers])
        row = {n: i for i, n in enumerate(numbers)}
        gate = torch.tensor([row[record.adapter] for record in model.tasks])
        images = torch.arange(len(test))
        accuracy, routing_accuracy = {}, {}
        for unit in self.units:
            tasks = choose(errors, groups(unit, len(test)))
            accuracy[unit] = right[gate[tasks], images].float().mean().item()
            routing_accuracy[unit] = (tasks == j).float().mean().item()
        return TaskScore(
            accuracy,
            routing_accuracy,
            oracle=right[gate[j]].float().mean().item(),
            ablated=right[confidence.argmax(0), images].float().mean().item(),
            errors=errors.mean(0).tolist(),
        )


def _answers(model: RememberingTransformer, test: Task, adapter: int) -> tuple[Tensor, Tensor]:
    """Whether an adapter answers each test image right, and how sure it is (its largest logit)."""
    position = {label: i for i, label in enumerate(model.heads[adapter].classes)}
    logits = model.adapter_logits(test.images, adapter)
    wanted = torch.tensor([position.get(label, -1) for label in test.labels])
    top = logits.max(1)
    return top.indices == wanted, top.values
