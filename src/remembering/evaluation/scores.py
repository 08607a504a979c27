"""What the evaluator measures after each task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from remembering.evaluation.metrics import mean
from remembering.schema import Rate


@dataclass(frozen=True)
class TaskScore:
    """Scores on the test images of one task.

    Attributes:
        accuracy: By routing unit.
        routing_accuracy: By routing unit, the fraction of images routed to their task.
        oracle: Accuracy with the correct adapter given.
        ablated: Accuracy without a router, where the most confident adapter answers.
        router_alone: Accuracy of a class-conditional router without any task's adapter.
        router_scores: Mean router score under the expert of each task.
        compared: The same adapters, routed by a second router.
    """

    accuracy: dict[str, Rate]
    routing_accuracy: dict[str, Rate] = field(default_factory=dict)
    oracle: Rate | None = None
    ablated: Rate | None = None
    router_alone: Rate | None = None
    router_scores: tuple[float, ...] = ()
    compared: TaskScore | None = None


@dataclass(frozen=True)
class Score:
    """Scores after some task, on the test images of all tasks learned so far.

    Attributes:
        tasks: One per learned task; empty if the learner was not evaluated.
        false_alarms: Fraction of test images whose novelty p-value is at most the target rate.
        auroc: How well OOD scores separate images of tasks that are not learned yet.
    """

    tasks: tuple[TaskScore, ...] = ()
    false_alarms: Rate | None = None
    auroc: Rate | None = None

    def mean(self, value: Callable[[TaskScore], float | None]) -> float | None:
        """Return the mean over tasks, or None if it was not measured."""
        known = [number for task in self.tasks if (number := value(task)) is not None]
        return mean(known) if known else None
