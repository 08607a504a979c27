"""Task-free streams: labelled images arrive without task boundaries.

Images that resemble learned tasks are recognised. New ones are collected in pending tasks; a
pending task is learned once the stream has moved on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.stats import binom  # type: ignore[import-untyped]
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings
from remembering.data.images import ImagesLike, joined, subset
from remembering.data.task import Label, Task
from remembering.errors import RememberingError
from remembering.inference.predict import router_features
from remembering.learning.algorithm import learn
from remembering.learning.refine import check_refinable, refine
from remembering.routing.gaussian import GaussianRouter
from remembering.runtime.progress import SILENT, Progress
from remembering.state import ModelState, PendingTask, TaskRecord

NOVEL_P_VALUE = 0.2
"""p-values up to this count as novel when a group of images is tested."""
SIGNIFICANCE = 1e-3
"""A group is novel if familiar images would have as many novel p-values less often than this."""
OPEN_BATCHES = 2
"""Unseen labels join a pending task of at most this many batches; then they begin another."""
MIN_IMAGES = 64
"""A pending task with fewer images cannot tell whether other images resemble it."""
PATIENCE = 2
"""A pending task that received nothing for this many batches is complete."""


@dataclass(frozen=True)
class Observed:
    """What `observe` did with a batch.

    Attributes:
        recognised: Number of images that belong to learned tasks, by task name.
        learned: Tasks that were complete and have been learned.
        waiting: Number of images in pending tasks.
        problems: Why complete tasks could not be learned; they stay pending.
    """

    recognised: dict[str, int]
    learned: tuple[TaskRecord, ...]
    waiting: int
    problems: tuple[str, ...] = ()


def observe(
    state: ModelState,
    backbone: Backbone,
    images: ImagesLike,
    labels: Sequence[Label],
    add: bool = False,
    progress: Progress = SILENT,
) -> tuple[ModelState, Observed]:
    """Assign each image of a batch to a learned or a pending task; learn what is complete.

    Args:
        state: What was learned and observed before.
        backbone: The frozen backbone.
        images: The batch.
        labels: One label per image.
        add: Whether recognised images are added to the statistics of their tasks.
        progress: Reports progress.

    Returns:
        The new state, and what was done with the batch.
    """
    before = len(state.tasks)
    state, recognised = _take_in(state, backbone, images, labels, add)
    problems: list[str] = []
    complete = [t.number for t in state.pending if t.idle >= PATIENCE and _is_learnable(t)]
    for number in complete:
        try:
            state = _learn_pending(state, backbone, number, progress)
        except RememberingError as error:
            problems.append(str(error))
    return state, Observed(recognised, state.tasks[before:], state.observed, tuple(problems))


def _take_in(
    state: ModelState,
    backbone: Backbone,
    images: ImagesLike,
    labels: Sequence[Label],
    add: bool,
) -> tuple[ModelState, dict[str, int]]:
    """Assign each image to a learned or a pending task; count the recognised ones by task."""
    batch = Task("batch", images, labels)
    known = {label for record in state.tasks for label in record.classes}
    _check_label_type(batch, [*known, *(label for task in state.pending for label in task.labels)])
    if add:
        check_refinable(state)
    state = replace(
        state, pending=tuple(replace(task, idle=task.idle + 1) for task in state.pending)
    )
    features = router_features(state, backbone, batch.images)
    familiar = torch.tensor([label in known for label in batch.labels])
    recognised: dict[str, int] = {}
    if familiar.any():
        rows = familiar.nonzero().flatten()
        if is_novel(state.router.novelty(features[rows]).cpu()):
            familiar = torch.zeros_like(familiar)
        else:
            state, recognised = _recognise(state, backbone, batch, features, rows, add)
    if not familiar.all():
        rows = (~familiar).nonzero().flatten()
        state = _collect(state, batch, features, rows)
    return state, recognised


def flush(
    state: ModelState, backbone: Backbone, discard: bool = False, progress: Progress = SILENT
) -> Iterator[ModelState]:
    """Learn all pending tasks; yield the state after each of them.

    Args:
        state: What was learned and observed before.
        backbone: The frozen backbone.
        discard: Whether to drop what cannot be learned.
        progress: Reports progress.

    Raises:
        RememberingError: After the last task, if some could not be learned and stay pending.
    """
    if discard:
        rest = [_without_single_images(task) for task in state.pending]
        state = replace(state, pending=tuple(task for task in rest if _is_learnable(task)))
        yield state
    problems: list[RememberingError] = []
    for number in [task.number for task in state.pending]:
        try:
            state = _learn_pending(state, backbone, number, progress)
        except RememberingError as error:
            if not discard:
                problems.append(error)
                continue
            state = _without(state, number)
        yield state
    if problems:
        raise problems[0]


def _learn_pending(
    state: ModelState, backbone: Backbone, number: int, progress: Progress
) -> ModelState:
    """Learn the pending task with this number, unless all of its images are familiar by now."""
    pending = next(task for task in state.pending if task.number == number)
    task = Task(_free_name(state), joined(pending.images), pending.labels)
    known = {label for record in state.tasks for label in record.classes}
    after = _without(state, number)
    if set(task.classes) <= known:
        features = router_features(state, backbone, task.images)
        if not is_novel(state.router.novelty(features).cpu()):
            return after
    try:
        return learn(after, backbone, task, progress)
    except RememberingError as error:
        raise RememberingError(
            f"observed images cannot be learned yet: {error}; they stay pending until more "
            "arrive; flush(discard=True) drops them"
        ) from error


def _without(state: ModelState, number: int) -> ModelState:
    return replace(state, pending=tuple(t for t in state.pending if t.number != number))


def is_novel(p_values: Tensor) -> bool:
    """Test whether the p-values of a group are lower than those of familiar images would be."""
    novel = int((p_values <= NOVEL_P_VALUE).sum())
    return bool(binom.sf(novel - 1, len(p_values), NOVEL_P_VALUE) < SIGNIFICANCE)


def _check_label_type(batch: Task, before: list[Label]) -> None:
    if before and type(before[0]) is not type(batch.classes[0]):
        raise RememberingError(
            f"the batch has {type(batch.classes[0]).__name__} labels, but earlier ones are "
            f"{type(before[0]).__name__} labels; use one type"
        )


def _recognise(
    state: ModelState,
    backbone: Backbone,
    batch: Task,
    features: Tensor,
    rows: Tensor,
    add: bool,
) -> tuple[ModelState, dict[str, int]]:
    """Assign the images of each label to the task with that label that fits them best."""
    scores = state.router.scores(features[rows]).cpu()
    labels = [batch.labels[i] for i in rows.tolist()]
    members: dict[int, list[int]] = {}
    for label in dict.fromkeys(labels):
        own = [i for i, other in enumerate(labels) if other == label]
        tasks = [t for t, record in enumerate(state.tasks) if label in record.classes]
        best = tasks[int(scores[own][:, tasks].mean(0).argmin())]
        members.setdefault(best, []).extend(own)
    if add:
        for position, own in members.items():
            record = state.tasks[position]
            targets = torch.tensor([record.classes.index(labels[i]) for i in own])
            images = subset(batch.images, rows[torch.tensor(own)])
            state = refine(state, backbone, record, images, targets)
    return state, {state.tasks[position].name: len(own) for position, own in members.items()}


def _collect(state: ModelState, batch: Task, features: Tensor, rows: Tensor) -> ModelState:
    """Add each image to the pending task that has its label; unseen labels begin a new one."""
    images = subset(batch.images, rows)
    features = features[rows]
    labels = [batch.labels[i] for i in rows.tolist()]
    pending = list(state.pending)
    homes: dict[int, list[int]] = {}
    for position, label in enumerate(labels):
        home = next((i for i, task in enumerate(pending) if label in task.labels), -1)
        homes.setdefault(home, []).append(position)
    unseen = homes.pop(-1, [])

    def add(home: int, positions: list[int]) -> None:
        task, some = pending[home], torch.tensor(positions)
        pending[home] = PendingTask(
            task.number,
            (*task.images, subset(images, some)),
            (*task.features, features[some]),
            (*task.labels, *(labels[i] for i in positions)),
            task.batches + 1,
        )

    for home, positions in homes.items():
        if _resembles(pending[home], features[positions]):
            add(home, positions)
        else:  # the same labels but different images: the pending task is complete
            pending[home] = replace(pending[home], idle=PATIENCE)
            unseen += positions
    if unseen:
        last = pending[-1] if pending else None
        closed = last is None or last.batches > OPEN_BATCHES or last.idle >= PATIENCE
        # A single class is not a task: it waits for another one.
        if last is None or (closed and len(set(last.labels)) > 1):
            pending.append(PendingTask(last.number + 1 if last else 0))
        add(len(pending) - 1, unseen)
    return replace(state, pending=tuple(pending))


def _is_learnable(task: PendingTask) -> bool:
    """Return whether there are two classes or more, and none with a single image."""
    counts = Counter(task.labels)
    return len(counts) > 1 and min(counts.values()) > 1


def _without_single_images(task: PendingTask) -> PendingTask:
    counts = Counter(task.labels)
    rows = torch.tensor([i for i, label in enumerate(task.labels) if counts[label] > 1])
    if not len(rows):
        return PendingTask(task.number)
    return replace(
        task,
        images=(subset(joined(task.images), rows),),
        features=(torch.cat(task.features)[rows],),
        labels=tuple(task.labels[i] for i in rows.tolist()),
    )


def _resembles(task: PendingTask, features: Tensor) -> bool:
    """Return whether images look like those of a pending task, as far as it can tell."""
    if len(task.labels) < MIN_IMAGES or min(Counter(task.labels).values()) < 2:
        return True
    position = {label: i for i, label in enumerate(dict.fromkeys(task.labels))}
    targets = torch.tensor([position[label] for label in task.labels])
    router = GaussianRouter(RouterSettings())
    expert = router.fit(torch.cat(task.features), targets, torch.Generator())
    return not is_novel(router.with_expert(0, expert).novelty(features))


def _free_name(state: ModelState) -> str:
    """Return the first free name for a task that the user did not name."""
    taken = {record.name for record in state.tasks}
    number = len(taken) + 1
    while f"observed {number}" in taken:
        number += 1
    return f"observed {number}"
