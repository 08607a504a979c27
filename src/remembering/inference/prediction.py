"""Prediction: the answers to a batch of images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor

from remembering.data.task import Label
from remembering.errors import RememberingError
from remembering.inference.explanation import explain

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Answer:
    """The answer to one image.

    Attributes:
        label: The most probable label.
        probability: Its probability.
        task: Name of the task of the label.
        adapter: Number of the adapter that answered.
        p_value: p-value of the hypothesis that the image belongs to a learned task, if a
            false-alarm rate was given.
        unknown: Whether the p-value is at most the false-alarm rate.
        file: Path of the image, if it was read from a file.
    """

    label: Label
    probability: float
    task: str
    adapter: int
    p_value: float | None = None
    unknown: bool | None = None
    file: str | None = None


@dataclass(frozen=True, eq=False)
class Neighbor:
    """A replay image that is similar to an image.

    Attributes:
        label: What it shows.
        task: Name of its task.
        distance: Distance in the space of the classifier; the smaller, the more similar.
        image: The image (channels, height, width), uint8.
    """

    label: Label
    task: str
    distance: float
    image: Tensor


@dataclass(frozen=True, eq=False)
class Prediction:
    """Answers to n images.

    `prediction[i]` and iteration give the `Answer` to one image, slices a shorter prediction.

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
        task_classes: Labels of each learned task, for explanations.
        files: Path of each image, if they were read from files.
        neighbors: The most similar replay images of each image, if requested; none where no images
            are kept.
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
    task_classes: Mapping[str, tuple[Label, ...]] | None = None
    files: list[str] | None = None
    neighbors: list[list[Neighbor]] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Answer]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Answer: ...

    @overload
    def __getitem__(self, index: slice) -> Prediction: ...

    def __getitem__(self, index: int | slice) -> Answer | Prediction:
        if isinstance(index, slice):
            shared = ("classes", "task_classes")
            values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in shared}
            chosen = list(range(len(self)))[index]  # tensors do not take negative steps
            return replace(self, **{name: _take(value, chosen) for name, value in values.items()})
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no answer {index}; the prediction has {len(self)}")
        i = range(len(self))[index]
        return Answer(
            self.labels[i],
            float(self.confidence[i]),
            self.tasks[i],
            int(self.adapters[i]),
            None if self.novelty is None else float(self.novelty[i]),
            None if self.unknown is None else bool(self.unknown[i]),
            None if self.files is None else self.files[i],
        )

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.labels[:5])) + (", ..." if len(self) > 5 else "")
        return f"Prediction({len(self)} image{'s' * (len(self) != 1)}: {shown})"

    @property
    def confidence(self) -> Tensor:
        """Probability of each answer, (n,)."""
        return self.probabilities.max(1).values

    def top(self, k: int) -> list[list[tuple[Label, float]]]:
        """Return the k most probable labels of each image with their probabilities."""
        if k < 1:
            raise RememberingError(f"k = {k} must be at least 1")
        values, indices = self.probabilities.topk(min(k, len(self.classes)), dim=1)
        return [
            [(self.classes[i], value) for i, value in zip(row, probabilities, strict=True)]
            for row, probabilities in zip(indices.tolist(), values.tolist(), strict=True)
        ]

    def explain(self, index: int, k: int = 3) -> str:
        """Explain one answer in words: candidate classes and tasks, and how typical the image is.

        With `neighbors`, also what the most similar replay images show.

        Args:
            index: Position of the image.
            k: Number of candidates to name.
        """
        answer = self[index]
        return explain(
            answer.label,
            answer.task,
            dict(zip(self.classes, self.probabilities[index].tolist(), strict=True)),
            self.task_classes or {},
            answer.p_value,
            answer.unknown,
            k,
            [] if self.neighbors is None else [near.label for near in self.neighbors[index]],
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with one row per image; its columns are those of `Answer`.

        Raises:
            RememberingError: If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise RememberingError("to_pandas requires pandas: pip install pandas") from error
        names = [field.name for field in fields(Answer) if field.name != "file"]
        frame = pd.DataFrame(map(vars, self), columns=["file", *names])
        return frame.dropna(axis="columns", how="all") if len(frame) else frame


def _take(value: Any, index: list[int]) -> Any:
    if value is None:
        return None
    return value[index] if isinstance(value, Tensor) else [value[i] for i in index]


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
