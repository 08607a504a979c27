"""What `learn` did: the task, the time, how good it is on held-out images, and what is doubtful."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from scipy.stats import binomtest  # type: ignore[import-untyped]

from remembering.backbones.backbone import BUNDLED, Backbone
from remembering.backbones.selection import select_backbone
from remembering.data.task import Task
from remembering.learning.held_out import HeldOut, held_out
from remembering.runtime.text import duration
from remembering.state import ModelState, TaskRecord

FEW_IMAGES = 10
"""Classes with fewer images cause a warning. With 5, 10 and 25 images per class, 57, 69 and 77 % of
single images were correct (training images of CIFAR-100 that were not learned, 20 classes in four
tasks, three draws of classes, ViT-Ti/16 at 112 px, without training)."""
SIGNIFICANCE = 0.05
"""A task is poor unless guessing would be as often correct with less probability than this."""
NAMED = 3
"""Number of classes that a warning names."""


@dataclass(frozen=True, eq=False, repr=False)
class Learned:
    """What `learn` did. Accuracies are computed when they are first read.

    Attributes:
        task: The learned task.
        seconds: How long it took.
        state: Everything learned so far.
        doubts: Warnings about the images, which are known without an accuracy.

    >>> from remembering import RememberingTransformer
    >>> import torch
    >>> model = RememberingTransformer.from_backbone("bundled", epochs=0)
    >>> images = torch.randint(0, 256, (24, 1, 28, 28), dtype=torch.uint8)
    >>> learned = model.learn(Task("noise", images, ["a", "b"] * 12))
    >>> learned.task.name, learned.held_out.tasks["noise"].images
    ('noise', 8)
    """

    task: TaskRecord
    seconds: float
    state: ModelState
    doubts: tuple[str, ...] = ()

    @cached_property
    def held_out(self) -> HeldOut | None:
        """Correct answers to held-out training images of all tasks; None if nothing is held out."""
        return held_out(self.state)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What is doubtful about the task, with reason and remedy."""
        poor = self._poor()
        return (poor, *self.doubts) if poor else self.doubts

    @property
    def accuracy_text(self) -> str:
        """Accuracy on held-out training images, with their numbers; empty if nothing is held out.

        Names the router's share if there are several adapters.
        """
        found = self.held_out
        if found is None or not found.tasks[self.task.name].images:
            return ""
        text = f"accuracy on held-out training images: {found.tasks[self.task.name]}"
        if len(self.state.tasks) > 1:
            text += f"; all {len(self.state.tasks)} tasks: {found.total}"
        if len(self.state.adapters) > 1:
            text += "; each with the adapter of its task"
            text += f", which the router chooses for {found.routing}" if found.routing else ""
        return text

    def __repr__(self) -> str:
        what = (
            f"'{self.task.name}': {len(self.task.classes)} classes, {self.task.images} images, "
            f"{duration(self.seconds)}"
        )
        return f"Learned({'; '.join(filter(None, (what, self.accuracy_text, *self.warnings)))})"

    def _poor(self) -> str | None:
        """Return a warning if the classes of the task are told apart no better than by chance."""
        within = self.held_out and self.held_out.within[self.task.name]
        if not within:
            return None
        chance = 1 / len(self.task.classes)
        if chance**within.images >= SIGNIFICANCE:  # too few to tell, even if all are correct
            return None
        test = binomtest(within.correct, within.images, chance, alternative="greater")
        if test.pvalue < SIGNIFICANCE:
            return None
        return (
            f"'{self.task.name}' may be guesswork: among its {len(self.task.classes)} classes, "
            f"{within} held-out images are correct, and guessing gives {chance:.0%}; check the "
            "labels, add images, or use another backbone, and measure with test images (evaluate)"
        )


def doubts(before: ModelState, backbone: Backbone, task: Task) -> tuple[str, ...]:
    """Return warnings about the images of a task.

    Args:
        before: What was learned before the task.
        backbone: The frozen backbone.
        task: The task.
    """
    found = (_unsuitable(backbone, task), _few_images(task), _repeated(before, task))
    return tuple(filter(None, found))


def _unsuitable(backbone: Backbone, task: Task) -> str | None:
    if backbone.name != BUNDLED:
        return None
    suitable = select_backbone(task.images)
    if suitable.name == BUNDLED:
        return None
    return (
        "the bundled backbone has seen nothing but grey letters of 28 px, and "
        f"{suitable.reason}; use another backbone, such as {suitable.name}"
    )


def _few_images(task: Task) -> str | None:
    counts = Counter(task.labels)
    few = {label: count for label, count in counts.items() if count < FEW_IMAGES}
    if not few:
        return None
    label, fewest = min(few.items(), key=lambda item: item[1])
    return (
        f"{len(few)} of the {len(counts)} classes of '{task.name}' have fewer than {FEW_IMAGES} "
        f"images ('{label}' has {fewest}), which makes answers and their measurement unreliable; "
        "add more (add_images, remember add)"
    )


def _repeated(before: ModelState, task: Task) -> str | None:
    owners = [record for record in before.tasks if not {*record.classes}.isdisjoint(task.classes)]
    if not owners:
        return None
    common = [f"'{label}'" for label in task.classes if label in owners[0].classes]
    return (
        f"'{task.name}' repeats classes of '{owners[0].name}'{_more(len(owners) - 1, 'task')}: "
        f"{', '.join(common[:NAMED])}{_more(len(common) - NAMED)}; to add images to known "
        "classes, use add_images (remember add) instead"
    )


def _more(count: int, noun: str = "") -> str:
    """Return how many are not named.

    >>> _more(2), _more(1, "task"), _more(0)
    (' and 2 more', ' and 1 more task', '')
    """
    if count < 1:
        return ""
    return f" and {count} more" + (f" {noun}{'s' * (count > 1)}" if noun else "")
