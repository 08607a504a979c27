"""Accuracy on held-out training images, from the feature vectors that calibrate a model.

The images themselves are gone. Their features were computed under the adapter of their task, so
each is answered among the classes of the tasks that share this adapter, by its plain view alone.
With one adapter this is single-image accuracy (unit `sample`); with several, whether the router
chooses the right adapter is counted separately, on other held-out images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from remembering.inference.classify import Classified, answer
from remembering.inference.prediction import choose_tasks
from remembering.routing.base import Expert
from remembering.state import ModelState, TaskRecord

MAX_VECTORS = 4096
"""Upper bound on the vectors of all tasks together; each task contributes at least four."""


@dataclass(frozen=True)
class Correct:
    """How many of some images were answered correctly."""

    correct: int
    images: int

    @property
    def accuracy(self) -> float:
        """Fraction of correct answers; NaN if there are no images."""
        return self.correct / self.images if self.images else float("nan")

    def __str__(self) -> str:
        return f"{self.correct:,} of {self.images:,} ({self.accuracy:.0%})"


@dataclass(frozen=True)
class HeldOut:
    """Correct answers to held-out training images.

    Attributes:
        tasks: By task name, among the classes of all tasks that share the task's adapter.
        within: The same among the classes of the task only, for comparison with chance.
        routing: Images for which the router chooses the right adapter; None if there is only one
            adapter, or the router holds nothing out.
    """

    tasks: Mapping[str, Correct]
    within: Mapping[str, Correct]
    routing: Correct | None = None

    @property
    def total(self) -> Correct:
        """All tasks together."""
        counts = self.tasks.values()
        return Correct(sum(c.correct for c in counts), sum(c.images for c in counts))


def held_out(state: ModelState) -> HeldOut | None:
    """Count correct answers to the held-out training images of all tasks.

    Returns:
        None if no unbiased figure can be computed: with heads nothing is held out, and a logit
        correction (`classifier.replay`) is fitted to the held-out images themselves.
    """
    classifiers = state.classifiers.values()
    if not classifiers or any("logit_correction" in c.shared for c in classifiers):
        return None
    every, own = {}, {}
    for position, record in enumerate(state.tasks):
        expert = state.classifiers[record.adapter].experts[record.number]
        every[record.name], own[record.name] = _count(state, position, record, expert)
    return HeldOut(every, own, _routing(state))


@torch.inference_mode()
def _count(
    state: ModelState, position: int, record: TaskRecord, expert: Expert
) -> tuple[Correct, Correct]:
    """Count correct answers for one task: among all classes of its adapter, and among its own."""
    rows = _sample(expert["calibration_targets"], len(state.tasks))
    targets = expert["calibration_targets"][rows].cpu()
    if not len(targets):
        return Correct(0, 0), Correct(0, 0)
    classifier = state.classifiers[record.adapter]
    own = classifier.class_logits(expert["calibration_features"][rows]).cpu()
    columns = (state.columns.adapter == record.adapter).nonzero().flatten()
    logits = torch.full((len(own), len(state.columns.label)), -torch.inf).double()
    logits[:, columns] = own
    mine = (state.columns.task == position).nonzero().flatten()
    labels = state.columns.label[mine][targets]
    probabilities, _ = answer(state, Classified(logits, torch.zeros(len(own)).long()))
    right = int((probabilities.argmax(1) == labels).sum())
    right_within = int((logits[:, mine].argmax(1) == targets).sum())
    return Correct(right, len(targets)), Correct(right_within, len(targets))


@torch.inference_mode()
def _routing(state: ModelState) -> Correct | None:
    """Count held-out images of the router for which it chooses the adapter of their task."""
    experts = [state.router.experts[record.number] for record in state.tasks]
    if len(state.adapters) < 2 or any("calibration_features" not in e for e in experts):
        return None
    right = images = 0
    for record, expert in zip(state.tasks, experts, strict=True):
        rows = _sample(expert["calibration_targets"], len(state.tasks))
        if len(rows):
            scores = state.router.scores(expert["calibration_features"][rows]).cpu()
            right += int((state.gate[choose_tasks(scores)] == record.adapter).sum())
            images += len(rows)
    return Correct(right, images) if images else None


def _sample(vectors: Tensor, tasks: int) -> Tensor:
    """Return the positions of a task's vectors that are used, spread over all of them."""
    stride = -(-len(vectors) // max(4, MAX_VECTORS // tasks)) or 1
    return torch.arange(0, len(vectors), stride)
