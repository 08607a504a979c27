"""The first figure of the README: ours beside the methods that it must be compared with."""

from __future__ import annotations

from collections.abc import Sequence

from remembering.report.curves import Curve, draw_curves
from remembering.report.experiment_rows import (
    FINETUNE,
    FIRST,
    FROZEN,
    JOINT,
    OURS,
    PUBLISHED,
    REPLAY,
    ExperimentRow,
)
from remembering.report.figure import Plot
from remembering.report.looks import method_look

LINES = {
    OURS: "Ours",
    REPLAY: "Ours, with replay",
    JOINT: "Joint training, all images at once",
    FIRST: "Router alone, adapted",
    FROZEN: "Router alone, frozen",
    PUBLISHED: "The paper's router",
    FINETUNE: "Fine-tuning",
}
"""Columns of the README's table that are drawn, all on single images, and their labels."""
NEEDED = (OURS, PUBLISHED, FINETUNE)
"""An experiment is drawn only if these were run."""


def overview(shown: Sequence[ExperimentRow]) -> Plot | None:
    """Draw the first experiment with enough methods; None if there is none.

    Args:
        shown: Experiments in order of preference.
    """
    row = next((row for row in shown if all(row.row(column) for column in NEEDED)), None)
    if row is None:
        return None
    found = {label: method for column, label in LINES.items() if (method := row.row(column))}
    curves = [
        Curve(label, method.curve, method_look(method.seeds.method))
        for label, method in found.items()
    ]
    title = f"{row.name}: accuracy on single images"
    ends = ", ".join(
        f"{label} {100 * method.accuracy.mean:.1f} %" for label, method in found.items()
    )
    return Plot(
        draw_curves(title, row.settings, curves),
        title,
        "Mean accuracy over the tasks learned so far, after each task; each image is answered "
        "alone, without its task. Bands are ± one standard deviation over seeds; methods that were "
        "evaluated after the last task only are single points.",
        f"After the last task: {ends}.",
    )
