"""Matrices of one method: accuracy by task and time, confusions, router scores.

Each function returns None if the results do not contain what it draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from remembering.report.figure import Plot
from remembering.report.groups import Seeds
from remembering.report.heatmap import ANNOTATED, NAMED, heatmap
from remembering.report.table import Table

FREQUENT = 10
"""Number of confusions in a table."""


@dataclass(frozen=True)
class Confusion:
    """How often images of each class (row) were assigned to each class (column)."""

    labels: tuple[str, ...]
    counts: NDArray[np.float64]

    @classmethod
    def of(cls, seeds: Seeds) -> Confusion:
        """Return the counts over all seeds, with classes in the order of the first one.

        Single images count, after the last task. A label that recurs in several tasks is one class.
        """
        counts: dict[str, Counter[str]] = {
            str(label): Counter() for task in seeds.first.tasks for label in task.classes
        }
        for result in seeds.results:
            unit = result.units.get("sample")
            for summary in unit.answers if unit else ():
                for label, answers in summary.confusion.items():
                    counts.setdefault(label, Counter()).update(answers)
        answered = dict.fromkeys(answer for row in counts.values() for answer in row)
        labels = tuple({**counts, **answered})
        rows = [[counts.get(label, Counter())[answer] for answer in labels] for label in labels]
        return cls(labels, np.array(rows, dtype=np.float64))

    def frequent(self, number: int = FREQUENT) -> list[tuple[str, str, int]]:
        """Return class, answer and count of the most frequent confusions."""
        pairs = [
            (self.labels[i], self.labels[j], int(count))
            for (i, j), count in np.ndenumerate(self.counts)
            if i != j and count
        ]
        return sorted(pairs, key=lambda pair: -pair[2])[:number]

    def table(self, caption: str) -> Table:
        """Return the most frequent confusions as a table."""
        rows = tuple((label, answer, f"{count:,}") for label, answer, count in self.frequent())
        return Table(caption, ("Class", "Answer", "Images"), rows)

    def draw(self, title: str, settings: str) -> Figure:
        """Draw the matrix, with each row scaled to 100 %."""
        rates = self.counts / np.maximum(self.counts.sum(1, keepdims=True), 1)
        named = self.labels if len(self.labels) <= NAMED else None
        return heatmap(
            title,
            settings,
            np.where(self.counts > 0, 100 * rates, np.nan),
            np.sqrt(rates),
            xlabel="Answer" if named else "Answer (number of the class)",
            ylabel="Class" if named else "Class (number)",
            columns=named,
            rows=named,
        )


def accuracy_matrix(title: str, settings: str, seeds: Seeds) -> Plot | None:
    """Draw the accuracy on single images of each task after each task.

    Args:
        title: Experiment and method.
        settings: What the numbers belong to.
        seeds: The method.
    """
    tasks = len(seeds.first.tasks)
    if tasks == 1 or "sample" not in seeds.units:
        return None
    matrices = [result.units["sample"].matrix for result in seeds.results]
    values = 100 * np.array(matrices, dtype=np.float64).mean(0)  # None becomes NaN
    if np.isnan(values[np.tril_indices(tasks)]).any():
        return None
    title = f"{title}: accuracy by task and time"
    drawn = heatmap(
        title,
        settings,
        values,
        values / 100,
        xlabel="Accuracy on task (%)",
        ylabel="After learning task",
    )
    return Plot(
        drawn,
        title,
        "Accuracy on single images of each task (columns) after each task was learned (rows). A "
        f"column that fades downwards is a task that is forgotten.{_means(seeds)}",
        f"First task: {values[0, 0]:.1f} % when it was learned, {values[-1, 0]:.1f} % after "
        f"{tasks} tasks.",
    )


def confusion_matrix(title: str, settings: str, seeds: Seeds) -> Plot | None:
    """Draw which classes single images were assigned to after the last task.

    Args:
        title: Experiment and method.
        settings: What the numbers belong to.
        seeds: The method.
    """
    found = Confusion.of(seeds)
    if len(found.labels) < 2 or not found.counts.any():
        return None
    title = f"{title}: confusion of classes"
    frequent = ", ".join(f"{label} as {answer} ({n})" for label, answer, n in found.frequent(3))
    summed = " Counts of all seeds." if len(seeds.seeds) > 1 else ""
    return Plot(
        found.draw(title, settings),
        title,
        "Share of the single test images of each class (rows) that were assigned to each class "
        "(columns) after the last task, in the order in which classes were learned. The square "
        f"root of the share is the intensity of the colour.{summed}",
        f"Most frequent confusions: {frequent}." if frequent else "No image was confused.",
    )


def router_scores(title: str, settings: str, seeds: Seeds) -> Plot | None:
    """Draw the router scores of the images of each task under the expert of each task.

    As in the paper's figure, scores are scaled to 0..1: here in each row (the images of one task),
    because the smallest score of the row decides. Seeds are averaged after scaling.

    Args:
        title: Experiment and method.
        settings: What the numbers belong to.
        seeds: The method.
    """
    routers = [result.routing.router for result in seeds.results if result.routing]
    if not routers or len(routers[0].scores) == 1:
        return None
    values = np.mean([_scaled_rows(router.scores) for router in routers], 0)
    score = routers[0].score_name
    title = f"{title}: {score} of the router"
    drawn = heatmap(
        title,
        settings,
        values,
        1 - values,
        xlabel=f"Expert of task ({score}, 0–1 per row)",
        ylabel="Test images of task",
        number="{:.2f}",
        rows=_task_names(seeds) if len(values) <= ANNOTATED else None,
    )
    nearest = int((values.argmin(1) == np.arange(len(values))).sum())
    return Plot(
        drawn,
        title,
        f"{score.capitalize()} of the test images of each task (rows) under the expert of each "
        "task (columns). Means over images, scaled to 0–1 in each row: 0, the most intense cell, "
        f"is the expert that the whole task is routed to.{_means(seeds)}",
        f"{nearest} of {len(values)} tasks have the smallest score under their own expert.",
    )


def _scaled_rows(scores: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    raw = np.asarray(scores, dtype=np.float64)
    low, high = raw.min(1, keepdims=True), raw.max(1, keepdims=True)
    spread: NDArray[np.float64] = np.where(high > low, high - low, 1.0)
    scaled: NDArray[np.float64] = (raw - low) / spread
    return scaled


def _task_names(seeds: Seeds) -> list[str] | None:
    """Return the tasks' numbers and names, if they are the same for every seed."""
    names = [[task.name for task in result.tasks] for result in seeds.results]
    if any(other != names[0] for other in names):
        return None
    return [f"{i}: {name}" for i, name in enumerate(names[0], start=1)]


def _means(seeds: Seeds) -> str:
    return " Means over seeds." if len(seeds.seeds) > 1 else ""
