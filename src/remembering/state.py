"""ModelState: everything that a model has learned, as one immutable value."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

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
from remembering.routing.classifier import GaussianClassifier
from remembering.routing.domain import Domain
from remembering.routing.share import Share


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
        held_out: The last so many images are not part of the class statistics of their task, so
            that they can check and calibrate a new adapter.
    """

    source: Tensor | ReplaySource
    labels: tuple[Label, ...]
    held_out: int = 0

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


@dataclass(frozen=True, eq=False)
class Reference:
    """An adapter before its first consolidation, and the exact class statistics in its space."""

    adapter: Adapter
    classifier: GaussianClassifier


@dataclass(frozen=True)
class Columns:
    """One column per class of each task, task after task: what class logits refer to.

    Attributes:
        label: Index of the column's label among the labels of the state.
        task: Position of the column's task.
        adapter: Number of the adapter that serves the column's task.
    """

    label: Tensor
    task: Tensor
    adapter: Tensor


@dataclass(frozen=True, eq=False)
class ModelState:
    """Everything that a model has learned. Derived values are cached properties.

    Attributes:
        settings: How tasks are learned, resolved for the backbone.
        router: Decides which adapter answers; has an expert for each task.
        tasks: Learned tasks, in order.
        adapters: Adapters by number.
        heads: Head of each adapter, with `classifier.kind = "head"`.
        classifiers: Class Gaussians of each adapter, with `classifier.kind = "gaussian"`.
        domains: The images that each adapter serves, for the novelty of a task.
        references: The reference space of each consolidated adapter.
        memories: Replay memories by task number.
        shares: What each task added to shared statistics, by task number.
        pending: Observed images that are not learned yet.
        next_number: Number of the next task.
    """

    settings: Settings
    router: Router
    tasks: tuple[TaskRecord, ...] = ()
    adapters: AdapterBank = field(default_factory=AdapterBank)
    heads: Mapping[int, Head] = field(default_factory=dict)
    classifiers: Mapping[int, GaussianClassifier] = field(default_factory=dict)
    domains: Mapping[int, Domain] = field(default_factory=dict)
    references: Mapping[int, Reference] = field(default_factory=dict)
    memories: Mapping[int, ReplayMemory] = field(default_factory=dict)
    shares: Mapping[int, Share] = field(default_factory=dict)
    pending: tuple[PendingTask, ...] = ()
    next_number: int = 0

    def __post_init__(self) -> None:
        for name in ("heads", "classifiers", "domains", "references", "memories", "shares"):
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
            "adapters and classifiers differ": set(self.adapters)
            != set(self.heads if self.settings.classifier.kind == "head" else self.classifiers),
            "a domain belongs to no adapter": not set(self.domains) <= set(self.adapters),
            "a reference belongs to no adapter": not set(self.references) <= set(self.adapters),
            "classifiers and gate differ": any(
                list(classifier.experts) != [task.number for task in self.served_by(adapter)]
                for adapter, classifier in self.classifiers.items()
            ),
            "tasks and experts differ": list(self.router.experts) != numbers,
            "a replay memory belongs to no task": not set(self.memories) <= set(numbers),
            "a share belongs to no task": not set(self.shares) <= set(numbers),
        }
        broken = [problem for problem, found in problems.items() if found]
        if broken:
            raise RememberingError(f"the state is inconsistent: {broken[0]}")

    def __reduce__(self) -> tuple[type[ModelState], tuple[Any, ...]]:
        """Pickle and copy what cannot be derived."""
        values = [getattr(self, item.name) for item in fields(self)]
        plain = [dict(v) if isinstance(v, MappingProxyType) else v for v in values]
        return type(self), tuple(plain)

    @classmethod
    def empty(cls, settings: Settings, backbone: Backbone) -> ModelState:
        """Return the state before the first task.

        Raises:
            RememberingError: If the settings do not fit the backbone.
        """
        settings = settings.resolved(backbone.depth)
        layers = f"the {backbone.depth} layers of '{backbone.name}'"
        if settings.first_layer >= backbone.depth:
            raise RememberingError(f"first_layer = {settings.first_layer} is not among {layers}")
        for name in ("router", "classifier"):
            read = getattr(settings, name).layers
            if read and read[-1] > backbone.depth:
                raise RememberingError(f"{name}.layers = {read} exceeds {layers}")
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
            classifiers={n: item.to(device) for n, item in self.classifiers.items()},
            references={
                n: Reference(item.adapter.to(device), item.classifier.to(device))
                for n, item in self.references.items()
            },
            pending=tuple(
                replace(task, features=tuple(part.to(device) for part in task.features))
                for task in self.pending
            ),
        )

    @cached_property
    def classes(self) -> tuple[Label, ...]:
        """Labels of all tasks, in the order of the columns of a prediction."""
        if self.heads:
            return self.stacked_heads.classes
        return tuple(dict.fromkeys(label for task in self.tasks for label in task.classes))

    @cached_property
    def stacked_heads(self) -> StackedHeads:
        """All heads as one matrix."""
        return StackedHeads(self.heads)

    @cached_property
    def gate(self) -> Tensor:
        """Gate(): the adapter number of each task, by position in `tasks`."""
        return torch.tensor([task.adapter for task in self.tasks])

    @cached_property
    def columns(self) -> Columns:
        """Label, task and adapter of each class of each task."""
        position = {label: i for i, label in enumerate(self.classes)}
        pairs = [(i, label) for i, task in enumerate(self.tasks) for label in task.classes]
        tasks = torch.tensor([i for i, _ in pairs])
        labels = torch.tensor([position[label] for _, label in pairs])
        return Columns(labels, tasks, self.gate[tasks])

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
        return self._served.get(adapter, ())

    @cached_property
    def _served(self) -> Mapping[int, tuple[TaskRecord, ...]]:
        served: dict[int, list[TaskRecord]] = {}
        for task in self.tasks:
            served.setdefault(task.adapter, []).append(task)
        return {adapter: tuple(tasks) for adapter, tasks in served.items()}

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
        models = [self.router, *self.classifiers.values()]
        models += [reference.classifier for reference in self.references.values()]
        domains = [t for d in self.domains.values() for t in vars(d).values()]
        routers = sum(m.parameters for m in models) + sum(t.numel() for t in domains)
        references = sum(reference.adapter.parameters for reference in self.references.values())
        replay = sum(memory.nbytes for memory in self.memories.values())
        trained = self.router.parameters if self.settings.router.kind == "autoencoder" else 0
        return Footprint(
            parameters=adapters + references + heads + routers,
            bytes=4 * (adapters + references + heads)
            + columns
            + sum(m.nbytes for m in models)
            + sum(t.nbytes for t in domains)
            + replay,
            trained=adapters + heads + trained,
            replay_images=sum(len(memory.labels) for memory in self.memories.values()),
            replay_bytes=replay,
            adapters=adapters,
            heads=heads,
            routers=routers,
            forget_bytes=sum(share.nbytes for share in self.shares.values()),
        )
