"""ModelState: everything that a model has learned, as one immutable value."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from remembering.adapters.bank import AdapterBank
from remembering.adapters.heads import Head, StackedHeads
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.config import Settings
from remembering.data.images import ImageSequence
from remembering.data.task import Label
from remembering.errors import RememberingError
from remembering.learner import Footprint
from remembering.routing import Router, make_router


@dataclass(frozen=True)
class TaskRecord:
    """A learned task.

    Attributes:
        number: Identifies the task and its expert; never reused.
        name: Chosen by the user, unique within a model.
        classes: Labels of the task.
        images: Number of images that it was learned from.
        adapter: The gate: number of the adapter that answers for this task.
    """

    number: int
    name: str
    classes: tuple[Label, ...]
    images: int
    adapter: int


class ReplaySource(Protocol):
    """Reads stored replay images each time it is called."""

    @property
    def nbytes(self) -> int: ...

    def __call__(self) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class ReplayMemory:
    """Replay images Ξ of a task (uint8), or a source that reads them on demand; and their labels.

    Attributes:
        source: The images, or what reads them.
        labels: One label per image.
    """

    source: Tensor | ReplaySource
    labels: tuple[Label, ...]

    @property
    def images(self) -> Tensor:
        """The images (n, channels, height, width)."""
        return self.source if isinstance(self.source, Tensor) else self.source()

    @property
    def nbytes(self) -> int:
        """Bytes of the images."""
        return self.source.nbytes


@dataclass(frozen=True, eq=False)
class PendingTask:
    """Observed images that will be learned as a task once the stream has moved on.

    Attributes:
        number: Identifies the pending task within a state.
        images: Parts of batches.
        features: Router features of each part.
        labels: Labels of all images.
        batches: Number of batches that contributed.
        idle: Number of batches observed since the last contribution.
    """

    number: int
    images: tuple[ImageSequence, ...] = ()
    features: tuple[Tensor, ...] = ()
    labels: tuple[Label, ...] = ()
    batches: int = 0
    idle: int = 0


@dataclass(frozen=True)
class RouterColumns:
    """What the columns of a class-conditional router's logits stand for.

    Attributes:
        label: Index of the column's label among the labels of the state.
        adapter: Number of the adapter that serves the column's task.
    """

    label: Tensor
    adapter: Tensor


@dataclass(frozen=True, eq=False)
class ModelState:
    """Everything that a model has learned. Derived values are cached properties.

    Attributes:
        settings: How tasks are learned; `settings.router` is resolved.
        router: Experts of all tasks.
        tasks: Learned tasks, in order.
        adapters: Adapters by number.
        heads: Head of each adapter.
        memories: Replay memories by task number.
        feature_adapter: Adapter under which the router reads deep states, trained on the first
            task (first-session adaptation).
        pending: Observed images that are not learned yet.
        next_number: Number of the next task.
    """

    settings: Settings
    router: Router
    tasks: tuple[TaskRecord, ...] = ()
    adapters: AdapterBank = field(default_factory=AdapterBank)
    heads: Mapping[int, Head] = field(default_factory=dict)
    memories: Mapping[int, ReplayMemory] = field(default_factory=dict)
    feature_adapter: Adapter | None = None
    pending: tuple[PendingTask, ...] = ()
    next_number: int = 0

    def __post_init__(self) -> None:
        for name in ("heads", "memories"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        numbers = [task.number for task in self.tasks]
        names = [task.name for task in self.tasks]
        problems = {
            "two tasks have the same number": len({*numbers}) < len(numbers),
            "two tasks have the same name": len({*names}) < len(names),
            "a number is not below next_number": any(
                not 0 <= n < self.next_number for n in (*numbers, *self.adapters)
            ),
            "the gate and the adapters disagree": (
                {task.adapter for task in self.tasks} != set(self.adapters)
            ),
            "adapters and heads differ": set(self.adapters) != set(self.heads),
            "tasks and experts differ": list(self.router.experts) != numbers,
            "a replay memory belongs to no task": not set(self.memories) <= set(numbers),
        }
        broken = [problem for problem, found in problems.items() if found]
        if broken:
            raise RememberingError(f"the state is inconsistent: {broken[0]}")

    @classmethod
    def empty(cls, settings: Settings, backbone: Backbone) -> ModelState:
        """Return the state before the first task.

        Raises:
            RememberingError: If the settings do not fit the backbone.
        """
        settings = replace(settings, router=settings.router.resolved(backbone.depth))
        layers = f"the {backbone.depth} layers of '{backbone.name}'"
        if settings.first_layer >= backbone.depth:
            raise RememberingError(f"first_layer = {settings.first_layer} is not among {layers}")
        if settings.router.layers[-1] > backbone.depth:
            raise RememberingError(f"router.layers = {settings.router.layers} exceeds {layers}")
        if settings.head == "frozen":
            backbone.require_classifier()
        return cls(settings, make_router(settings.router))

    def to(self, device: torch.device) -> ModelState:
        """Return this state on another device."""
        return replace(
            self,
            router=self.router.to(device),
            adapters=self.adapters.to(device),
            heads={number: head.to(device) for number, head in self.heads.items()},
            feature_adapter=self.feature_adapter and self.feature_adapter.to(device),
            pending=tuple(
                replace(task, features=tuple(part.to(device) for part in task.features))
                for task in self.pending
            ),
        )

    @cached_property
    def classes(self) -> tuple[Label, ...]:
        """Labels of all adapters, in the order of the columns of a prediction."""
        return self.stacked_heads.classes if self.heads else ()

    @cached_property
    def stacked_heads(self) -> StackedHeads:
        """All heads as one matrix."""
        return StackedHeads(self.heads)

    @cached_property
    def gate(self) -> Tensor:
        """Gate(): the adapter number of each task, by position in `tasks`."""
        return torch.tensor([task.adapter for task in self.tasks])

    @cached_property
    def router_columns(self) -> RouterColumns:
        """Label and adapter of each column of the router's class logits."""
        position = {label: i for i, label in enumerate(self.classes)}
        pairs = [(task.adapter, label) for task in self.tasks for label in task.classes]
        return RouterColumns(
            torch.tensor([position[label] for _, label in pairs]),
            torch.tensor([adapter for adapter, _ in pairs]),
        )

    @property
    def single_pass(self) -> bool:
        """Whether routing needs no additional forward pass."""
        return self.settings.router.layers[-1] <= self.settings.first_layer

    @property
    def needs_feature_adapter(self) -> bool:
        """Whether the first task has to train a feature adapter."""
        return (
            self.feature_adapter is None
            and self.settings.router.feature_rank > 0
            and not self.single_pass
        )

    @property
    def observed(self) -> int:
        """Number of observed images that are not learned yet."""
        return sum(len(task.labels) for task in self.pending)

    def task(self, name: str) -> TaskRecord:
        """Return a task by name."""
        for task in self.tasks:
            if task.name == name:
                return task
        known = ", ".join(f"'{task.name}'" for task in self.tasks) or "none"
        raise RememberingError(f"there is no task '{name}'; the tasks are {known}")

    def served_by(self, adapter: int) -> tuple[TaskRecord, ...]:
        """Return the tasks whose gate points at an adapter."""
        return tuple(task for task in self.tasks if task.adapter == adapter)

    def new_head(self, classes: Sequence[Label], backbone: Backbone) -> Head:
        """Return an untrained head over these classes."""
        if self.settings.head == "linear":
            return Head.linear(classes, backbone)
        return Head.frozen(classes, self._frozen_columns(classes), backbone)

    def extended_head(self, head: Head, classes: Sequence[Label], backbone: Backbone) -> Head:
        """Return a head that also has the classes that it lacks."""
        if head.trained:
            return head.extended(classes)
        return self.new_head(tuple(dict.fromkeys([*head.classes, *classes])), backbone)

    def _frozen_columns(self, classes: Sequence[Label]) -> list[int]:
        """Assign outputs of the checkpoint's classifier to labels: known ones, or the next free."""
        taken = {
            label: column
            for head in self.heads.values()
            for label, column in zip(head.classes, head.columns.tolist(), strict=True)
        }
        used = set(taken.values())
        free = (column for column in itertools.count() if column not in used)
        return [taken[label] if label in taken else next(free) for label in classes]

    @property
    def footprint(self) -> Footprint:
        """Parameters and bytes that must be kept besides the frozen backbone."""
        adapters = self.adapters.parameters
        heads = sum(head.parameters for head in self.heads.values())
        columns = sum(head.columns.nbytes for head in self.heads.values())
        feature_adapter = self.feature_adapter.parameters if self.feature_adapter else 0
        replay = sum(memory.nbytes for memory in self.memories.values())
        return Footprint(
            adapters=adapters,
            heads=heads,
            routers=self.router.parameters + feature_adapter,
            replay_bytes=replay,
            bytes=4 * (adapters + heads + feature_adapter) + columns + self.router.nbytes + replay,
        )
