"""What is known about the quality of a model, and its calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remembering.data.columns import Label
from remembering.schema import Count, Rate

BINS = 10
"""Bins of equal width for the calibration error, by confidence."""


@dataclass(frozen=True)
class TaskQuality:
    """Single-image accuracy on the classes of one learned task.

    Attributes:
        name: Name of the task.
        images: Number of images.
        accuracy: Fraction of correct labels.
        routing_accuracy: Fraction of images that were routed to a task with their label, or to
            their own task if it is known.
    """

    name: str
    images: Count
    accuracy: Rate
    routing_accuracy: Rate


@dataclass(frozen=True)
class ClassQuality:
    """Single-image accuracy on one class.

    Attributes:
        label: The class.
        images: Number of images.
        accuracy: Fraction of its images that were answered correctly (recall).
        precision: Fraction of correct answers among those that name this class; None if none does.
    """

    label: Label
    images: Count
    accuracy: Rate
    precision: Rate | None


@dataclass(frozen=True)
class ConfidenceBin:
    """Answers whose confidence lies between two bounds.

    Attributes:
        low: Lower bound.
        high: Upper bound.
        images: Number of answers.
        confidence: Their mean confidence; 0 if there are none.
        accuracy: Fraction of correct ones; 0 if there are none.
    """

    low: Rate
    high: Rate
    images: Count
    confidence: Rate
    accuracy: Rate


@dataclass(frozen=True)
class Mistake:
    """A wrong answer.

    Attributes:
        image: Path of the image, or its position.
        position: Position among all images that were given.
        label: Correct label.
        answer: Label that the model gave.
        probability: Its probability.
    """

    image: str
    position: Count
    label: Label
    answer: Label
    probability: Rate


@dataclass(frozen=True)
class Evaluation:
    """How good a model is. Accuracies are fractions, of images that are answered alone.

    Attributes:
        unit: Routing unit.
        images: Number of images.
        left_out: Number of images that were left out, because their class was not learned.
        accuracy: Fraction of correct labels.
        routing_accuracy: Fraction of images that were routed to their task.
        tasks: By learned task.
        classes: By class.
        labels: Labels of the rows and columns of `confusion`.
        confusion: Number of images by correct label (row) and answer (column).
        calibration_error: Expected calibration error (ECE) over `BINS` bins of equal width.
        bins: Its bins, of the reliability diagram.
        false_alarm_rate: Requested false-alarm rate.
        false_alarms: Fraction of the images that were flagged as unknown.
        unknown_images: Number of images of unknown classes that were given.
        detected: Fraction of these that were flagged.
        auroc: How well p-values separate them from the known images.
        probe_accuracy: Accuracy of a linear probe: logistic regression on the features that the
            frozen backbone gives its heads, trained on all classes at once.
        probe_images: Number of its training images.
        mistakes: The most confident mistakes.
    """

    unit: str
    images: Count
    left_out: Count
    accuracy: Rate
    routing_accuracy: Rate
    tasks: tuple[TaskQuality, ...]
    classes: tuple[ClassQuality, ...]
    labels: tuple[Label, ...]
    confusion: tuple[tuple[Count, ...], ...]
    calibration_error: Rate
    bins: tuple[ConfidenceBin, ...]
    false_alarm_rate: Rate
    false_alarms: Rate
    unknown_images: Count = 0
    detected: Rate | None = None
    auroc: Rate | None = None
    probe_accuracy: Rate | None = None
    probe_images: Count = 0
    mistakes: tuple[Mistake, ...] = ()

    def __repr__(self) -> str:
        return (
            f"Evaluation(accuracy {self.accuracy:.1%} of {self.images} images, each alone; "
            f"calibration error {self.calibration_error:.3f}; "
            f"{self.false_alarms:.1%} false alarms at {self.false_alarm_rate:.0%})"
        )


def confidence_bins(confidence: Tensor, correct: Tensor) -> tuple[ConfidenceBin, ...]:
    """Sort answers into bins of equal width by confidence; a bin includes its upper bound."""
    bounds = torch.tensor([i / BINS for i in range(1, BINS)], dtype=confidence.dtype)
    place = torch.bucketize(confidence, bounds)
    result = []
    for i in range(BINS):
        inside = place == i
        count = int(inside.sum())
        result.append(
            ConfidenceBin(
                i / BINS,
                (i + 1) / BINS,
                count,
                float(confidence[inside].double().mean()) if count else 0.0,
                float(correct[inside].double().mean()) if count else 0.0,
            )
        )
    return tuple(result)


def calibration_error(bins: Sequence[ConfidenceBin]) -> float:
    """Return the expected calibration error: mean |accuracy − confidence|, weighted by images.

    Guo et al., 2017 (arXiv:1706.04599), Eq. 3.
    """
    total = sum(item.images for item in bins)
    return sum(item.images * abs(item.accuracy - item.confidence) for item in bins) / total
