"""Metrics of continual learning. Accuracies are fractions between 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float | None]]
"""Row i: after learning task i. Column j: accuracy on task j, None if it was not measured."""


def mean(values: Sequence[float]) -> float:
    """Return the mean. The paper averages over tasks, not over images."""
    return sum(values) / len(values)


def accuracy(answers: Sequence[object], labels: Sequence[object]) -> float:
    """Return the fraction of correct answers."""
    return sum(a == b for a, b in zip(answers, labels, strict=True)) / len(labels)


def accuracy_after(matrix: Matrix) -> list[float | None]:
    """Return, after each task, the mean accuracy over the tasks learned so far.

    None where the learner was not evaluated.

    >>> accuracy_after([[0.9, None], [0.6, 0.8]])
    [0.9, 0.7]
    """
    known = [[value for value in row if value is not None] for row in matrix]
    return [mean(row) if row else None for row in known]


def forgetting(matrix: Matrix) -> float | None:
    """Return the mean, over all tasks but the last, of best minus final accuracy.

    Chaudhry et al., 2018 (arXiv:1801.10112), Eq. 3. None for a single task, and if the learner was
    evaluated only after the last one.

    >>> forgetting([[0.9, None], [0.6, 0.8]])
    0.30000000000000004
    """
    *before, final = matrix
    if not before or None in accuracy_after(matrix):
        return None
    losses = []
    for j, value in enumerate(final[: len(before)]):
        column = [known for row in before if (known := row[j]) is not None]
        if value is None or not column:
            raise ValueError(f"the matrix has no accuracies of task {j}")
        losses.append(max(column) - value)
    return mean(losses)
