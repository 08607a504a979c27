"""Tables, plots and the page of an evaluation."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from remembering.data.images import ImageSequence
from remembering.evaluation.quality import Evaluation
from remembering.report.figure import BLUE, GREY, INK, STYLE, shorten, svg
from remembering.report.page import Plot, inline_svg
from remembering.report.table import NOTHING, Table
from remembering.report.templates import render
from remembering.runtime.files import write_atomic

THUMBNAIL = 160
"""Largest side of a thumbnail in pixels."""
LABELLED = 40
"""Largest number of classes whose names are written beside the confusion matrix."""
CONFUSIONS = 10


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """Return the tables of an evaluation: summary, tasks, classes, most frequent confusions."""
    tables = [_summary(evaluation), _tasks(evaluation), _classes(evaluation)]
    confusions = _confusions(evaluation)
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
    error = evaluation.calibration_error
    plots = [
        Plot(
            name,
            caption,
            inline_svg(svg(drawn, transparent=True), name, caption),
        )
        for name, drawn, caption in (
            (
                "reliability",
                reliability_diagram(evaluation),
                "Reliability diagram: accuracy of the answers by their confidence. Answers below "
                f"the diagonal are too confident. Expected calibration error {error:.3f}.",
            ),
            (
                "confusion",
                confusion_matrix(evaluation),
                "Confusion matrix: images by correct class (rows) and answer (columns), as a "
                "percentage of each row.",
            ),
        )
    ]
    thumbnails = [_thumbnail(images, item.position) for item in evaluation.mistakes]
    page = render(
        "evaluation.html.jinja",
        title=title,
        lead=f"Evaluated on {evaluation.images:,} images of {len(evaluation.classes)} classes.",
        cards=list(_cards(evaluation)),
        tables=[Markup(table.to_html()) for table in evaluation_tables(evaluation)],
        plots=plots,
        mistakes=list(zip(evaluation.mistakes, thumbnails, strict=True)),
    )
    write_atomic(path, page.encode("utf-8"))
    return path


def reliability_diagram(evaluation: Evaluation) -> Figure:
    """Draw the accuracy of answers by confidence, and how many answers have it."""
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(5.4, 5.4))
        axes, counts = fig.subplots(2, height_ratios=(4, 1), sharex=True)
        bins = evaluation.bins
        middles = [(item.low + item.high) / 2 for item in bins]
        width = 0.9 / len(bins)
        axes.bar(middles, [item.accuracy for item in bins], width, color=BLUE, label="accuracy")
        axes.plot([0, 1], [0, 1], color=INK, linestyle=(0, (5, 2)), label="perfect calibration")
        axes.set(title="Reliability (each image alone)", ylabel="Accuracy", ylim=(0, 1))
        axes.legend(loc="upper left")
        counts.bar(middles, [item.images for item in bins], width, color=GREY)
        counts.set(xlabel="Confidence", ylabel="Images", xlim=(0, 1))
        return fig


def confusion_matrix(evaluation: Evaluation) -> Figure:
    """Draw the confusion matrix of the classes that occur, scaled to 100 % per row."""
    counts = np.array(evaluation.confusion, dtype=float)
    shown = [i for i in range(len(counts)) if counts[i].sum() or counts[:, i].sum()]
    counts = counts[np.ix_(shown, shown)]
    rates = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    names = [shorten(str(evaluation.labels[i]), 18) for i in shown]
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        side = float(np.clip(0.32 * len(shown) + 2, 3.6, 9))
        fig = Figure(figsize=(side + 1.2, side))
        axes = fig.subplots()
        image = axes.imshow(100 * rates, cmap="cividis", vmin=0, vmax=100, interpolation="none")
        fig.colorbar(image, ax=axes, shrink=0.8, label="% of row").outline.set_visible(False)
        axes.spines[:].set_visible(False)
        axes.set(title="Confusion (each image alone)", xlabel="Answer", ylabel="Correct class")
        if len(names) <= LABELLED:
            axes.set_xticks(range(len(names)), labels=names, rotation=90)
            axes.set_yticks(range(len(names)), labels=names)
        return fig


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


def _confusions(evaluation: Evaluation) -> Table:
    pairs = [
        (count, str(evaluation.labels[i]), str(evaluation.labels[j]))
        for i, row in enumerate(evaluation.confusion)
        for j, count in enumerate(row)
        if i != j and count
    ]
    frequent = sorted(pairs, key=lambda pair: -pair[0])[:CONFUSIONS]
    rows = tuple((label, answer, str(count)) for count, label, answer in frequent)
    return Table("Most frequent confusions", ("correct", "answer", "images"), rows)


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
