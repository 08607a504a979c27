"""What the evaluator measures after each task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from remembering.evaluation.metrics import mean
from remembering.schema import Count, Rate


@dataclass(frozen=True)
class AnswerSummary:
    """The predicted labels of the test images of one task.

    Attributes:
        sha256: Hash of the predicted labels as a JSON list, in the order of the images.
        confusion: For each label, how often each label was predicted.
    """

    sha256: str
    confusion: dict[str, dict[str, Count]]

    @classmethod
    def of(cls, answers: Sequence[str | int], labels: Sequence[str | int]) -> AnswerSummary:
        """Summarize the predicted labels of some images.

        >>> AnswerSummary.of(["cat", "dog", "cat"], ["cat", "cat", "cat"]).confusion
        {'cat': {'cat': 2, 'dog': 1}}
        """
        confusion: dict[str, dict[str, int]] = {}
        for answer, label in zip(answers, labels, strict=True):
            row = confusion.setdefault(str(label), {})
            row[str(answer)] = row.get(str(answer), 0) + 1
        return cls(hashlib.sha256(json.dumps(list(answers)).encode()).hexdigest(), confusion)


@dataclass(frozen=True)
class TaskScore:
    """Scores on the test images of one task.

    Attributes:
        accuracy: By routing unit.
        answers: Summary of the answers by routing unit.
        routing_accuracy: By routing unit, the fraction of images routed to their task.
        oracle: Accuracy with the correct adapter given.
        ablated: Accuracy without a router, where the most confident adapter answers.
        router_scores: Mean router score under the expert of each task.
    """

    accuracy: dict[str, Rate]
    answers: dict[str, AnswerSummary]
    routing_accuracy: dict[str, Rate] = field(default_factory=dict)
    oracle: Rate | None = None
    ablated: Rate | None = None
    router_scores: tuple[float, ...] = ()


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
