"""Numbers that continual learning is compared by. Accuracies are shares, 0..1."""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float | None]]
"""Row i: after learning task i. Column j: accuracy on task j, None where j is not learned yet."""


def mean(values: Sequence[float]) -> float:
    """The plain mean: the paper averages over tasks, not over images."""
    return sum(values) / len(values)


def forgetting(matrix: Matrix) -> float | None:
    """Mean over the old tasks of their best accuracy so far less their last one.

    Chaudhry et al., 2018 (arXiv:1801.10112), Eq. 3. None for a single task.

    >>> forgetting([[0.9, None], [0.6, 0.8]])
    0.30000000000000004
    """
    last = len(matrix) - 1
    if last < 1:
        return None
    losses = []
    for j in range(last):
        column = [value for row in matrix[:last] if (value := row[j]) is not None]
        final = matrix[last][j]
        if final is None:
            raise ValueError(f"the last row has no accuracy for task {j}")
        losses.append(max(column) - final)
    return mean(losses)
