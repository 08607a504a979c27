"""Learning without task boundaries: images with labels come, and nobody says where a task begins.

What is seen for the first time waits in a draft until the stream has moved on; then the draft is
learned as a task. What is familiar is recognised, and gets no adapter of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from remembering.config import RouterSettings
from remembering.data.images import ImageSequence, as_images, joined, subset
from remembering.data.task import Label, Task
from remembering.errors import RememberingError
from remembering.routing.gaussian import GaussianRouter
from remembering.runtime.progress import Progress

if TYPE_CHECKING:
    from remembering.adapters.lora import Adapter
    from remembering.inference.prediction import TaskRecord
    from remembering.model import RememberingTransformer

FLAG = 0.2
"""p-values up to this count as strange when a group of images is judged."""
DOUBT = 1e-3
"""A group is new if familiar images would be as strange with less than this probability."""
YOUNG = 2
"""Labels not seen before join a draft of at most so many batches; then they begin another."""
ENOUGH = 64
"""A draft of fewer images cannot tell whether others look alike."""
PATIENCE = 2
"""A draft that got nothing in so many batches is complete."""


@dataclass(eq=False)
class PendingTask:
    """What may become a task."""

    images: list[ImageSequence] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    """What the router sees of them."""
    labels: list[Label] = field(default_factory=list)
    batches: int = 0
    idle: int = 0

    def add(self, images: ImageSequence, features: Tensor, labels: Sequence[Label]) -> None:
        """One more part of a batch."""
        self.images.append(images)
        self.features.append(features)
        self.labels += labels
        self.batches += 1
        self.idle = 0

    @property
    def learnable(self) -> bool:
        """Whether there are classes to tell apart, and none of a single image."""
        counts = Counter(self.labels)
        return len(counts) > 1 and min(counts.values()) > 1

    def without_single_images(self) -> PendingTask:
        """Without the labels that it has one image of."""
        counts = Counter(self.labels)
        rows = torch.tensor([i for i, label in enumerate(self.labels) if counts[label] > 1])
        rest = PendingTask(batches=self.batches, idle=self.idle)
        if len(rows):
            rest.images = [subset(joined(self.images), rows)]
            rest.features = [torch.cat(self.features)[rows]]
            rest.labels = [self.labels[i] for i in rows.tolist()]
        return rest

    def resembles(self, features: Tensor) -> bool:
        """Whether images of its labels look like those it has, as far as they can tell."""
        if len(self.labels) < ENOUGH or min(Counter(self.labels).values()) < 2:
            return True
        position = {label: i for i, label in enumerate(dict.fromkeys(self.labels))}
        router = GaussianRouter(RouterSettings())
        targets = torch.tensor([position[label] for label in self.labels])
        router.add(0, router.fit(torch.cat(self.features), targets, torch.Generator()))
        return not strange(router.novelty(features))


@dataclass(frozen=True)
class Observed:
    """What was made of a batch."""

    recognised: dict[str, int]
    """Images that belong to tasks already learned, by task."""
    learned: list[TaskRecord]
    """Tasks that were complete and have been learned now."""
    waiting: int
    """Images that wait in drafts."""


class Observer:
    """Decides for each batch what is familiar and what is new."""

    def __init__(self, model: RememberingTransformer):
        self.model = model
        self.drafts: list[PendingTask] = []
        self._feature_adapter: Adapter | None = None
        """Those that the features of drafts were seen through."""

    @property
    def waiting(self) -> int:
        """Images in drafts."""
        return sum(len(draft.labels) for draft in self.drafts)

    def observe(
        self, images: Any, labels: Sequence[Label], refine: bool, progress: Progress
    ) -> Observed:
        """Take in one batch."""
        batch = Task("batch", images, labels)  # checks images and labels
        known = {label for record in self.model.tasks for label in record.classes}
        before = next(
            iter([*known, *(label for draft in self.drafts for label in draft.labels)]), 0
        )
        if (known or self.drafts) and type(before) is not type(batch.classes[0]):
            raise RememberingError(
                f"the batch has {type(batch.classes[0]).__name__} labels, but those before it are "
                f"{type(before).__name__} labels; use one kind"
            )
        if refine:
            self.model.router.check_refinable()
        for draft in self.drafts:
            draft.idle += 1
        familiar = torch.tensor([label in known for label in batch.labels])
        new = ~familiar
        recognised: dict[str, int] = {}
        if familiar.any():
            rows = familiar.nonzero().flatten()
            if self._is_new(batch, rows):
                new |= familiar
            else:
                recognised = self._recognise(batch, rows, refine)
        if new.any():
            self._keep(batch, new.nonzero().flatten())
        complete = [d for d in self.drafts if d.idle >= PATIENCE and d.learnable]
        learned = [record for draft in complete for record in self._learn(draft, progress)]
        return Observed(recognised, learned, self.waiting)

    def flush(self, discard: bool, progress: Progress) -> list[TaskRecord]:
        """Learn every draft now: the stream has ended, or answers are wanted."""
        if discard:
            rest = [draft.without_single_images() for draft in self.drafts]
            self.drafts = [draft for draft in rest if draft.learnable]
        learned, problems = [], []
        for draft in list(self.drafts):
            try:
                learned += self._learn(draft, progress)
            except RememberingError as error:
                if discard:
                    self.drafts.remove(draft)
                else:
                    problems.append(error)
        if problems:
            raise problems[0]
        return learned

    def _keep(self, batch: Task, rows: Tensor) -> None:
        """Each image goes to the draft that has its label; unseen labels begin one."""
        labels = [batch.labels[i] for i in rows.tolist()]
        homes: dict[int, list[int]] = {}
        for position, label in enumerate(labels):
            home = next((i for i, d in enumerate(self.drafts) if label in d.labels), -1)
            homes.setdefault(home, []).append(position)
        unseen = homes.pop(-1, [])
        images = as_images(batch.images[rows])
        features = self.model.router_features(images)
        if (
            self.model.feature_adapter is not self._feature_adapter
        ):  # a task was learned: drafts are seen otherwise now
            self._feature_adapter = self.model.feature_adapter
            for draft in self.drafts:
                draft.features = [self.model.router_features(part) for part in draft.images]

        def put(draft: PendingTask, positions: list[int]) -> None:
            some = torch.tensor(positions)
            draft.add(subset(images, some), features[some], [labels[i] for i in positions])

        for home, positions in homes.items():
            if self.drafts[home].resembles(features[positions]):
                put(self.drafts[home], positions)
            else:  # the same labels, but another look: the draft is complete
                self.drafts[home].idle = PATIENCE
                unseen += positions
        if unseen:
            last = self.drafts[-1] if self.drafts else None
            closed = last is None or last.batches > YOUNG or last.idle >= PATIENCE
            # A class alone is no task: it waits for another.
            if last is None or (closed and len(set(last.labels)) > 1):
                self.drafts.append(PendingTask())
            put(self.drafts[-1], unseen)

    def _learn(self, draft: PendingTask, progress: Progress) -> list[TaskRecord]:
        """Learn a draft, unless all of it turns out to be familiar."""
        task = Task(self._name(), joined(draft.images), draft.labels)
        known = {label for record in self.model.tasks for label in record.classes}
        familiar = set(task.classes) <= known and not self._is_new(task, torch.arange(len(task)))
        try:
            learned = [] if familiar else [self.model.learn(task, progress)]
        except RememberingError as error:
            raise RememberingError(
                f"what was observed cannot be learned yet: {error}; it is kept until more comes, "
                "unless flush is told to discard it"
            ) from error
        self.drafts.remove(draft)
        return learned

    def _is_new(self, batch: Task, rows: Tensor) -> bool:
        """Whether a group of images is stranger than what was learned would ever be."""
        return strange(self.model.novelty(batch.images[rows]))

    def _recognise(self, batch: Task, rows: Tensor, refine: bool) -> dict[str, int]:
        """The task of each label that explains its images best."""
        model = self.model
        features = model.router_features(as_images(batch.images[rows]))
        errors = model.router.score(features).cpu()
        labels = [batch.labels[i] for i in rows.tolist()]
        counts: dict[str, int] = {}
        members: dict[int, list[int]] = {}
        for label in dict.fromkeys(labels):
            own = [i for i, other in enumerate(labels) if other == label]
            tasks = [t for t, record in enumerate(model.tasks) if label in record.classes]
            best = tasks[int(errors[own][:, tasks].mean(0).argmin())]
            name = model.tasks[best].name
            counts[name] = counts.get(name, 0) + len(own)
            members.setdefault(best, []).extend(own)
        if refine:
            for position, own in members.items():
                record = model.tasks[position]
                targets = torch.tensor([record.classes.index(labels[i]) for i in own])
                model.router.refine(record.number, features[own], targets)
        return counts

    def _name(self) -> str:
        """The first free name for a task that nobody named."""
        taken = {record.name for record in self.model.tasks}
        number = len(taken) + 1
        while f"observed {number}" in taken:
            number += 1
        return f"observed {number}"


def strange(p: Tensor) -> bool:
    """Whether p-values of a group are lower than those of familiar images would ever be."""
    return binomial_tail(int((p <= FLAG).sum()), len(p), FLAG) < DOUBT


def binomial_tail(count: int, total: int, rate: float) -> float:
    """Probability of at least `count` of `total`, each with probability `rate`.

    >>> round(binomial_tail(2, 2, 0.2), 3)
    0.04
    """
    ways = [math.lgamma(n + 1) for n in range(total + 1)]
    return math.fsum(
        math.exp(
            ways[total]
            - ways[k]
            - ways[total - k]
            + k * math.log(rate)
            + (total - k) * math.log1p(-rate)
        )
        for k in range(count, total + 1)
    )
