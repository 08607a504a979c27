"""Tables, plots and the page of an evaluation."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from markupsafe import Markup
from PIL import Image

from remembering.data.images import ImageSequence
from remembering.evaluation.quality import Evaluation
from remembering.report.figure import BLUE, GREY, INK, STYLE, Plot, canvas, dark_mode
from remembering.report.matrices import Confusion
from remembering.report.page import Drawing
from remembering.report.table import NOTHING, Table
from remembering.report.templates import render
from remembering.runtime.files import write_atomic

THUMBNAIL = 160
"""Largest side of a thumbnail in pixels."""


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """Return the tables of an evaluation: summary, tasks, classes, most frequent confusions."""
    tables = [_summary(evaluation), _tasks(evaluation), _classes(evaluation)]
    confusions = _confusion(evaluation).table("Most frequent confusions")
    confusions = replace(confusions, headers=("correct", "answer", "images"))
    return [*tables, confusions] if confusions.rows else tables


def mistakes_table(evaluation: Evaluation) -> Table:
    """Return the most confident mistakes."""
    return Table(
        "Most confident mistakes",
        ("image", "correct", "answer", "probability"),
        tuple(
            (item.image, str(item.label), str(item.answer), f"{item.probability:.3f}")
            for item in evaluation.mistakes
        ),
    )


def write_evaluation(evaluation: Evaluation, images: ImageSequence, path: Path, title: str) -> Path:
    """Write an evaluation as one HTML page.

    Args:
        evaluation: The evaluation.
        images: The images that were given, for thumbnails of the mistakes.
        path: The page.
        title: Its title, such as the name of the model.
    """
    plots = {
        "reliability": reliability_diagram(evaluation),
        "confusion": confusion_matrix(evaluation),
    }
    thumbnails = [_thumbnail(images, item.position) for item in evaluation.mistakes]
    page = render(
        "evaluation.html.jinja",
        title=title,
        lead=f"Evaluated on {evaluation.images:,} images of {len(evaluation.classes)} classes.",
        cards=list(_cards(evaluation)),
        tables=[Markup(table.to_html()) for table in evaluation_tables(evaluation)],
        plots=[Drawing.of(plot, name) for name, plot in plots.items()],
        dark_mode=Markup(dark_mode()),
        mistakes=list(zip(evaluation.mistakes, thumbnails, strict=True)),
    )
    write_atomic(path, page.encode("utf-8", "backslashreplace"))
    return path


def reliability_diagram(evaluation: Evaluation) -> Plot:
    """Draw the accuracy of answers by confidence, and how many answers have it."""
    bins = evaluation.bins
    middles = [(item.low + item.high) / 2 for item in bins]
    width, title = 0.9 / len(bins), "Reliability of single images"
    with mpl.rc_context(STYLE):
        fig, axes = canvas(title, "", height=260, left=44)
        upper = axes.get_position()
        split, legend = 0.64 * upper.height, 0.1 * upper.height
        axes.set_position((upper.x0, upper.y1 - legend - split, upper.width, split))
        counts = fig.add_axes((upper.x0, upper.y0, upper.width, 0.22 * upper.height), sharex=axes)
        axes.bar(middles, [item.accuracy for item in bins], width, color=BLUE, label="accuracy")
        axes.plot([0, 1], [0, 1], color=INK, linestyle=(0, (5, 2)), label="perfect calibration")
        axes.set(ylabel="Accuracy", ylim=(0, 1))
        axes.tick_params(labelbottom=False)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        counts.bar(middles, [item.images for item in bins], width, color=GREY)
        counts.set(xlabel="Confidence", ylabel="Images", xlim=(0, 1))
    return Plot(
        fig,
        title,
        "Accuracy of the answers by their confidence. Answers below the diagonal are too "
        f"confident. Expected calibration error {evaluation.calibration_error:.3f}.",
        "; ".join(
            f"confidence {item.low:.1f} to {item.high:.1f}: {100 * item.accuracy:.0f} % of "
            f"{item.images} correct"
            for item in bins
            if item.images
        ),
    )


def confusion_matrix(evaluation: Evaluation) -> Plot:
    """Draw the confusion matrix of the classes that occur."""
    title, found = "Confusion of classes", _confusion(evaluation)
    return Plot(
        found.draw(title, "single images"),
        title,
        "Share of the images of each class (rows) that were assigned to each class (columns). The "
        "square root of the share is the intensity of the colour.",
    )


def _confusion(evaluation: Evaluation) -> Confusion:
    counts = np.array(evaluation.confusion, dtype=np.float64)
    shown = [i for i in range(len(counts)) if counts[i].any() or counts[:, i].any()]
    labels = tuple(str(evaluation.labels[i]) for i in shown)
    return Confusion(labels, counts[np.ix_(shown, shown)])


def _summary(evaluation: Evaluation) -> Table:
    rows = [
        ("accuracy (%)", _percent(evaluation.accuracy), "unit sample: each image alone"),
        ("routing accuracy (%)", _percent(evaluation.routing_accuracy), "unit sample"),
        (
            "calibration error (ECE)",
            f"{evaluation.calibration_error:.3f}",
            f"{len(evaluation.bins)} bins of equal width",
        ),
        (
            "false alarms (%)",
            _percent(evaluation.false_alarms),
            f"{_percent(evaluation.false_alarm_rate)} requested",
        ),
    ]
    if evaluation.auroc is not None:
        unknown = f"{evaluation.unknown_images:,} unknown images"
        rows += [
            ("AUROC, unknown against known", f"{evaluation.auroc:.3f}", unknown),
            ("unknown images detected (%)", _percent(evaluation.detected), unknown),
        ]
    if evaluation.probe_accuracy is not None:
        how = f"{evaluation.probe_images:,} training images, all classes at once; each image alone"
        rows.append(("linear probe, accuracy (%)", _percent(evaluation.probe_accuracy), how))
    left_out = f", {evaluation.left_out:,} of other classes left out" * bool(evaluation.left_out)
    caption = f"{evaluation.images:,} images of {len(evaluation.classes)} classes{left_out}"
    return Table(caption, ("measure", "value", "how"), tuple(rows))


def _tasks(evaluation: Evaluation) -> Table:
    return Table(
        "By task (unit sample: each image alone)",
        ("task", "images", "accuracy (%)", "routing accuracy (%)"),
        tuple(
            (t.name, f"{t.images:,}", _percent(t.accuracy), _percent(t.routing_accuracy))
            for t in evaluation.tasks
        ),
    )


def _classes(evaluation: Evaluation) -> Table:
    return Table(
        "By class, lowest accuracy first (unit sample: each image alone)",
        ("class", "images", "accuracy (%)", "precision (%)"),
        tuple(
            (str(c.label), f"{c.images:,}", _percent(c.accuracy), _percent(c.precision))
            for c in sorted(evaluation.classes, key=lambda c: c.accuracy)
        ),
    )


def _cards(evaluation: Evaluation) -> Iterator[tuple[str, str, str]]:
    yield f"{_percent(evaluation.accuracy)} %", "accuracy", "sample: each image alone"
    yield f"{evaluation.calibration_error:.3f}", "calibration error", "0 is perfect"
    requested = f"{_percent(evaluation.false_alarm_rate)} % requested"
    yield f"{_percent(evaluation.false_alarms)} %", "false alarms", requested
    if evaluation.auroc is not None:
        yield f"{evaluation.auroc:.3f}", "AUROC", "unknown against known images"
    if evaluation.probe_accuracy is not None:
        trained = f"{evaluation.probe_images:,} training images, each test image alone"
        yield f"{_percent(evaluation.probe_accuracy)} %", "linear probe", trained


def _thumbnail(images: ImageSequence, position: int) -> str:
    """Return an image as a data URI of a small JPEG."""
    pixels = images[torch.tensor([position])][0].permute(1, 2, 0).numpy()
    image = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}"
