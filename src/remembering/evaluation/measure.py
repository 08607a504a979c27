"""Measure how good a model is on labelled images.

Every image is answered alone (routing unit `sample`). Only `predict` of the model is used, and its
frozen backbone for the linear probe.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.conversion import as_images
from remembering.data.images import ImagesLike, image_paths, joined, subset
from remembering.data.paths import load_tasks
from remembering.data.task import Label, Task
from remembering.errors import InvalidInputError
from remembering.evaluation.metrics import accuracy
from remembering.evaluation.quality import (
    ClassQuality,
    Evaluation,
    Mistake,
    TaskQuality,
    calibration_error,
    confidence_bins,
)
from remembering.inference.encoding import frozen_features
from remembering.inference.prediction import Prediction
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.text import printable
from remembering.state import TaskRecord

FALSE_ALARM_RATE = 0.05
MISTAKES = 12
"""Number of mistakes that are listed."""
_logger = logging.getLogger("remembering")


class Answering(Protocol):
    """The protocol of a model that can be evaluated."""

    @property
    def backbone(self) -> Backbone: ...

    @property
    def tasks(self) -> tuple[TaskRecord, ...]: ...

    def predict(
        self, images: ImagesLike, *, false_alarm_rate: float | None, progress: Progress = SILENT
    ) -> Prediction: ...


def evaluate(
    model: Answering,
    tasks: Task | Sequence[Task] | str | Path,
    unknown: ImagesLike | None = None,
    train: Task | Sequence[Task] | str | Path | None = None,
    false_alarm_rate: float = FALSE_ALARM_RATE,
    progress: Progress = SILENT,
    mistakes: int = MISTAKES,
) -> Evaluation:
    """Evaluate a model on labelled images; see `RememberingTransformer.evaluate`."""
    tasks = _as_tasks(tasks, progress)
    labelled = _Labelled(model.tasks, tasks)
    if not len(labelled):
        raise InvalidInputError("no image belongs to a learned class; pass images of these classes")
    prediction = model.predict(
        labelled.images, false_alarm_rate=false_alarm_rate, progress=progress
    )
    assert prediction.unknown is not None
    assert prediction.novelty is not None
    correct = [a == b for a, b in zip(prediction.labels, labelled.labels, strict=True)]
    routed = [
        task in owners for task, owners in zip(prediction.tasks, labelled.owners, strict=True)
    ]
    labels = prediction.classes
    bins = confidence_bins(prediction.confidence, torch.tensor(correct))
    detected, auroc, count = None, None, 0
    if unknown is not None:
        others = as_images(unknown)
        foreign = model.predict(others, false_alarm_rate=false_alarm_rate, progress=progress)
        assert foreign.unknown is not None
        assert foreign.novelty is not None
        count, detected = len(others), _mean(foreign.unknown.tolist())
        auroc = _auroc(prediction.novelty, foreign.novelty)
    training = None if train is None else _Labelled(model.tasks, _as_tasks(train, progress))
    return Evaluation(
        unit="sample",
        images=len(labelled),
        left_out=labelled.left_out,
        accuracy=_mean(correct),
        routing_accuracy=_mean(routed),
        tasks=_by_task(model.tasks, labelled, correct, routed),
        classes=_by_class(labels, labelled.labels, prediction.labels),
        labels=labels,
        confusion=_confusion(labels, labelled.labels, prediction.labels),
        calibration_error=calibration_error(bins),
        bins=bins,
        false_alarm_rate=false_alarm_rate,
        false_alarms=_mean(prediction.unknown.tolist()),
        unknown_images=count,
        detected=detected,
        auroc=auroc,
        probe_accuracy=None if training is None else _probe(model.backbone, training, labelled),
        probe_images=0 if training is None else len(training),
        mistakes=_mistakes(labelled, prediction, correct, mistakes),
    )


class _Labelled:
    """The images of several tasks whose labels were learned, in order.

    Attributes:
        positions: Position of each image among all that were given.
        labels: Label of each image, as it was learned: folder names are strings, labels may be
            integers.
        owners: Names of the tasks that an image may be routed to.
        left_out: Number of images whose labels were not learned.
    """

    def __init__(self, learned: Sequence[TaskRecord], tasks: Sequence[Task]):
        known = {str(label): label for record in learned for label in record.classes}
        names = [name for task in tasks for name in _image_names(task)]
        given = [(task.name, str(label)) for task in tasks for label in task.labels]
        self.positions = [i for i, (_, label) in enumerate(given) if label in known]
        self.names = [names[i] for i in self.positions]
        self.labels: list[Label] = [known[given[i][1]] for i in self.positions]
        index = torch.tensor(self.positions).long()
        self.images = subset(joined([task.images for task in tasks]), index)
        self.owners = []
        for i, label in zip(self.positions, self.labels, strict=True):
            owners = [record.name for record in learned if label in record.classes]
            self.owners.append([given[i][0]] if given[i][0] in owners else owners)
        new = Counter(label for _, label in given if label not in known)
        self.left_out = new.total()
        if new:
            named = ", ".join(f"{label} ({count})" for label, count in sorted(new.items()))
            named = printable(named)
            _logger.warning("left out images of classes that were not learned: %s", named)

    def __len__(self) -> int:
        return len(self.labels)


def _by_task(
    learned: Sequence[TaskRecord],
    labelled: _Labelled,
    correct: Sequence[bool],
    routed: Sequence[bool],
) -> tuple[TaskQuality, ...]:
    rows = []
    for record in learned:
        index = [i for i, owners in enumerate(labelled.owners) if owners[0] == record.name]
        if index:
            right = _mean([correct[i] for i in index])
            rows.append(
                TaskQuality(record.name, len(index), right, _mean([routed[i] for i in index]))
            )
    return tuple(rows)


def _by_class(
    classes: Sequence[Label], labels: Sequence[Label], answers: Sequence[Label]
) -> tuple[ClassQuality, ...]:
    images, given = Counter(labels), Counter(answers)
    right = Counter(a for a, b in zip(answers, labels, strict=True) if a == b)
    return tuple(
        ClassQuality(
            label,
            images[label],
            right[label] / images[label],
            right[label] / given[label] if given[label] else None,
        )
        for label in classes
        if images[label]
    )


def _confusion(
    classes: Sequence[Label], labels: Sequence[Label], answers: Sequence[Label]
) -> tuple[tuple[int, ...], ...]:
    pairs = Counter(zip(labels, answers, strict=True))
    return tuple(tuple(pairs[row, column] for column in classes) for row in classes)


def _mistakes(
    labelled: _Labelled, prediction: Prediction, correct: Sequence[bool], count: int
) -> tuple[Mistake, ...]:
    """Return the wrong answers with the highest confidence."""
    confidence = prediction.confidence.tolist()
    wrong = sorted((i for i, c in enumerate(correct) if not c), key=lambda i: -confidence[i])
    return tuple(
        Mistake(
            labelled.names[i],
            labelled.positions[i],
            labelled.labels[i],
            prediction.labels[i],
            confidence[i],
        )
        for i in wrong[:count]
    )


def _probe(backbone: Backbone, train: _Labelled, test: _Labelled) -> float:
    """Return the accuracy of logistic regression on standardised features of the backbone."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(set(train.labels)) < 2:
        raise InvalidInputError("the linear probe needs training images of two learned classes")
    features, others = (
        frozen_features(backbone, part.images, backbone.depth).cpu().numpy()
        for part in (train, test)
    )
    names = [str(label) for label in train.labels]
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(features, names)
    return accuracy(probe.predict(others).tolist(), [str(label) for label in test.labels])


def _auroc(known: Tensor, unknown: Tensor) -> float:
    from sklearn.metrics import roc_auc_score

    is_unknown = [False] * len(known) + [True] * len(unknown)
    return float(roc_auc_score(is_unknown, -torch.cat([known, unknown])))


def _image_names(task: Task) -> list[str]:
    if (paths := image_paths(task.images)) is not None:
        return [str(path) for path in paths]
    return [f"image {i} of {task.name}" for i in range(len(task))]


def _as_tasks(tasks: Task | Sequence[Task] | str | Path, progress: Progress) -> Sequence[Task]:
    if isinstance(tasks, str | Path):
        return load_tasks(tasks, progress=progress)
    listed: list[Any] = list(tasks) if isinstance(tasks, Sequence) else [tasks]
    if not listed or not all(isinstance(task, Task) for task in listed):
        raise InvalidInputError(
            "evaluate takes a Task, a list of tasks, or the path of a folder or table; pass "
            "Task(name, images, labels)"
        )
    return listed


def _mean(values: Sequence[bool]) -> float:
    return sum(values) / len(values)
