"""Prediction: the answers to a batch of images."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from remembering.data.task import Label


@dataclass(frozen=True, eq=False)
class Prediction:
    """Answers to n images.

    Attributes:
        labels: The most probable label of each image.
        probabilities: (n, classes).
        classes: Labels of the columns of `probabilities`.
        tasks: Name of the task of each answer.
        adapters: Number of the adapter that answered each image, (n,).
        scores: Scores (n, tasks); the lowest is the most familiar task. With gaussian classifiers
            negative log-likelihoods under the adapter that answered, ∞ for tasks of other
            adapters. With heads, the scores of the router.
        novelty: p-values (n,) of the hypothesis that an image belongs to a learned task, if a
            false-alarm rate was given.
        unknown: Whether the p-value is at most the false-alarm rate, (n,).
        top_k: The k most probable labels of each image with their probabilities, if requested.
    """

    labels: list[Label]
    probabilities: Tensor
    classes: tuple[Label, ...]
    tasks: list[str]
    adapters: Tensor
    scores: Tensor
    novelty: Tensor | None = None
    unknown: Tensor | None = None
    top_k: list[list[tuple[Label, float]]] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.labels[:5])) + (", ..." if len(self) > 5 else "")
        return f"Prediction({len(self)} images: {shown})"

    @property
    def confidence(self) -> Tensor:
        """Probability of each answer, (n,)."""
        return self.probabilities.max(1).values

    def top(self, k: int) -> list[list[tuple[Label, float]]]:
        """Return the k most probable labels of each image with their probabilities."""
        values, indices = self.probabilities.topk(min(k, len(self.classes)), dim=1)
        return [
            [(self.classes[i], value) for i, value in zip(row, probabilities, strict=True)]
            for row, probabilities in zip(indices.tolist(), values.tolist(), strict=True)
        ]


def choose_tasks(scores: Tensor, groups: Tensor | None = None) -> Tensor:
    """Return the position of the most familiar task for each image.

    Args:
        scores: Scores (n, tasks); the lowest is the most familiar.
        groups: Group number of each image. The images of a group are assigned together, by the sum
            of their scores. If None, each image is assigned alone.
    """
    if groups is None:
        return scores.argmin(1)
    sums = scores.new_zeros(int(groups.max()) + 1, scores.shape[1]).index_add_(0, groups, scores)
    return sums.argmin(1)[groups]
