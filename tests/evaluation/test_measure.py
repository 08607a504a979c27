"""What `evaluate` computes, checked by hand on answers that are made up."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from PIL import Image
from support import learned, make_task
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.conversion import as_images
from remembering.data.images import ImagesLike
from remembering.data.task import Task
from remembering.errors import InvalidFileError, InvalidInputError
from remembering.evaluation.measure import evaluate
from remembering.evaluation.quality import calibration_error, confidence_bins
from remembering.inference.prediction import Prediction
from remembering.runtime.progress import SILENT, Progress
from remembering.state import TaskRecord

CLASSES = ("a", "b", 7)
PIXELS = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).expand(6, 1, 4, 4)
PROBABILITIES = torch.tensor(
    [[0.9, 0.1, 0], [0.2, 0.8, 0], [0.6, 0.4, 0], [0, 0.3, 0.7], [0, 0.95, 0.05], [0, 0, 1.0]]
)


class MadeUp:
    """Answers the image with the grey value i by row i of `PROBABILITIES`."""

    tasks = (TaskRecord(0, "first", ("a", "b"), 4, 0), TaskRecord(1, "second", (7,), 4, 1))

    def __init__(self, backbone: Backbone):
        self.backbone = backbone

    def predict(
        self, images: ImagesLike, *, false_alarm_rate: float | None, progress: Progress = SILENT
    ) -> Prediction:
        sequence = as_images(images)
        rows = torch.tensor(
            [int(image[0, 0, 0]) for image in sequence[torch.arange(len(sequence))]]
        )
        probabilities = PROBABILITIES[rows]
        best = probabilities.argmax(1).tolist()
        novelty = torch.tensor([0.5, 0.01, 0.9, 0.3, 0.8, 0.02])[rows]
        return Prediction(
            [CLASSES[i] for i in best],
            probabilities,
            CLASSES,
            ["second" if i == 2 else "first" for i in best],
            torch.zeros(len(rows)).long(),
            torch.zeros(len(rows), 2),
            novelty,
            novelty <= (false_alarm_rate or 0),
        )


def given(rows: list[int], labels: list[str], name: str = "test") -> Task:
    return Task(name, PIXELS[rows], labels)


def test_accuracies_and_confusion(backbone: Backbone) -> None:
    # Answers: a b a 7 b 7. Folder names are strings, also where labels are integers.
    test = given([0, 1, 2, 3, 4, 5], ["a", "b", "b", "b", "7", "7"])
    result = evaluate(MadeUp(backbone), test)
    assert (result.unit, result.images, result.left_out) == ("sample", 6, 0)
    assert result.accuracy == pytest.approx(3 / 6)
    assert result.routing_accuracy == pytest.approx(4 / 6)
    assert [(t.name, t.images, t.accuracy, t.routing_accuracy) for t in result.tasks] == [
        ("first", 4, pytest.approx(2 / 4), pytest.approx(3 / 4)),
        ("second", 2, pytest.approx(1 / 2), pytest.approx(1 / 2)),
    ]
    assert [(c.label, c.images, c.accuracy, c.precision) for c in result.classes] == [
        ("a", 1, 1, pytest.approx(1 / 2)),
        ("b", 3, pytest.approx(1 / 3), pytest.approx(1 / 2)),
        (7, 2, pytest.approx(1 / 2), pytest.approx(1 / 2)),
    ]
    assert result.labels == CLASSES
    assert result.confusion == ((1, 0, 0), (1, 1, 1), (0, 1, 1))
    assert result.false_alarms == pytest.approx(2 / 6)
    assert result.auroc is result.detected is result.probe_accuracy is None
    assert "accuracy 50.0% of 6 images" in repr(result)


def test_mistakes_are_the_most_confident_ones(backbone: Backbone) -> None:
    test = given([0, 1, 2, 3, 4, 5], ["a", "b", "b", "b", "7", "7"])
    result = evaluate(MadeUp(backbone), test, mistakes=2)
    assert [(m.position, m.label, m.answer) for m in result.mistakes] == [(4, 7, "b"), (3, "b", 7)]
    assert result.mistakes[0].probability == pytest.approx(0.95)
    assert result.mistakes[0].image == "image 4 of test"


def test_classes_that_were_not_learned_are_left_out(
    backbone: Backbone, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "remembering"):
        result = evaluate(MadeUp(backbone), given([3, 0, 4], ["new", "a", "a"]))
    assert "left out images of classes that were not learned: new (1)" in caplog.text
    assert (result.images, result.left_out, result.accuracy) == (2, 1, 0.5)
    assert result.mistakes[0].position == 2, "among all images that were given"
    with pytest.raises(InvalidInputError, match="no image belongs to a learned class"):
        evaluate(MadeUp(backbone), given([0], ["new"]))


def test_the_name_of_a_task_decides_where_a_label_recurs(backbone: Backbone) -> None:
    class Recurring(MadeUp):
        tasks = (TaskRecord(0, "first", ("a", 7), 4, 0), TaskRecord(1, "second", (7,), 4, 1))

    model = Recurring(backbone)  # answers "second" for the label 7
    parts = [given([5], ["7"], "first"), given([5], ["7"], "second")]
    assert [t.routing_accuracy for t in evaluate(model, parts).tasks] == [0, 1]
    assert evaluate(model, given([5], ["7"], "any")).routing_accuracy == 1


def test_unknown_images(backbone: Backbone) -> None:
    test = given([0, 2, 3], ["a", "b", "7"])  # p-values 0.5, 0.9, 0.3
    result = evaluate(MadeUp(backbone), test, unknown=PIXELS[[1, 4]])  # 0.01, 0.8
    assert (result.unknown_images, result.detected, result.false_alarms) == (2, 0.5, 0)
    assert result.auroc == pytest.approx(4 / 6)


@pytest.mark.parametrize("tasks", [[], [1]])
def test_wrong_arguments(tasks: object, backbone: Backbone) -> None:
    with pytest.raises(InvalidInputError, match=r"takes a Task, a list of tasks, or the path"):
        evaluate(MadeUp(backbone), tasks)  # type: ignore[arg-type]
    with pytest.raises(InvalidFileError, match="nowhere is not a folder"):
        evaluate(MadeUp(backbone), "nowhere")


def test_calibration() -> None:
    confidence = torch.tensor([0.0, 0.1, 0.15, 0.2, 1.0])
    bins = confidence_bins(confidence, torch.tensor([False, True, True, False, True]))
    assert [item.images for item in bins] == [2, 2, *[0] * 7, 1]
    assert (bins[1].confidence, bins[1].accuracy) == (pytest.approx(0.175), 0.5)
    expected = (2 * abs(0.5 - 0.05) + 2 * abs(0.5 - 0.175) + 0) / 5
    assert calibration_error(bins) == pytest.approx(expected)


def shifted(task: Task) -> Tensor:
    pixels = as_images(task.images)[torch.arange(len(task))]
    assert isinstance(pixels, Tensor)
    return (pixels.int() + 3).clamp(0, 255).to(torch.uint8)


def test_a_real_model_and_a_linear_probe(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2)
    train = [make_task(n, (f"a{n}", f"b{n}")) for n in range(2)]
    test = [Task(task.name, shifted(task), task.labels) for task in train]
    noise = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    result = model.evaluate(test, unknown=noise, train=train)
    prediction = [label for task in test for label in model.predict(task.images).labels]
    labels = [label for task in test for label in task.labels]
    assert result.accuracy == sum(map(str.__eq__, prediction, labels)) / len(labels)  # type: ignore[arg-type]
    assert result.probe_images == 24
    assert result.probe_accuracy is not None
    assert result.probe_accuracy > 0.5
    assert result.auroc is not None


def test_a_folder_is_evaluated_like_its_tasks(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2)
    train = [make_task(n, (f"a{n}", f"b{n}")) for n in range(2)]
    for task in train:
        for i, label in enumerate(task.labels):
            file = tmp_path / task.name / str(label) / f"{i:02}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = task.images[torch.tensor([i])][0].permute(1, 2, 0)
            Image.fromarray(pixels.numpy()).save(file)
    wanted = model.evaluate(train, unknown=train[0].images, train=train)
    folder = model.evaluate(tmp_path, unknown=tmp_path / "task 0", train=str(tmp_path))
    for name in ("accuracy", "images", "confusion", "probe_accuracy", "auroc", "unknown_images"):
        assert getattr(folder, name) == getattr(wanted, name), name
