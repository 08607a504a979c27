"""The contract of every rival: learn a task, predict images, say what is kept, save and load.

Whatever a method remembers lies in `tensors`, by name, and in `extra_state`, which JSON can write. From
those two the base class counts the footprint, saves, loads, and takes back a task that failed.
"""

from __future__ import annotations

import copy
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from remembering import schema
from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.baselines.features import FeatureCache, frozen_features
from remembering.config import Settings
from remembering.data.images import ImageSequence, as_images
from remembering.data.task import Label, Task
from remembering.errors import RememberingError
from remembering.inference.token_cache import TokenCache, batches
from remembering.learning.checkpoint import digest
from remembering.learning.training import Batch, Callback, TrainingSet, adapted, logits, train
from remembering.runtime.files import write_atomic
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.seeding import generator

VERSION = 2


@dataclass(frozen=True)
class Kept:
    """What a method keeps beside the frozen backbone."""

    parameters: int
    """Floating-point numbers."""
    bytes: int
    """Everything: these, counters, and stored images."""
    images: int = 0
    """Training images, within those bytes."""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Kept:
        """Counted."""
        return cls(
            sum(t.numel() for t in tensors.values() if t.is_floating_point()),
            sum(t.nbytes for t in tensors.values()),
            sum(len(t) for name, t in tensors.items() if name.endswith(".images")),
        )


class Baseline(ABC):
    """A continual learner on the same frozen backbone, with the same settings.

    To add one, subclass this (or `SingleAdapter`, or `FrozenFeatures`) in a file of its own and
    name it in `remembering.baselines._METHODS`; `tests/baselines/test_contract.py` then runs on
    it. Tensors in `tensors` are replaced, never changed in place: that is how a task that fails is
    taken back. Row i of whatever a method keeps per class belongs to `classes[i]`.
    """

    name: ClassVar[str]
    """As the command knows it."""
    title: ClassVar[str]
    """As tables show it."""
    reference: ClassVar[str]
    """Who proposed it, and where."""
    published: ClassVar[str | None] = None
    """Its row in the paper's Table 1, if it has one."""
    stores: ClassVar[str]
    """What is kept, in a sentence."""
    defaults: ClassVar[Mapping[str, float]] = {}
    """Its own numbers by name; `options` has those in force. `memory` is how many training images
    it keeps in all: a comparison gives each method that has it the same (see exemplars.py)."""
    every_task: ClassVar[bool] = True
    """Whether it is worth asking after each task, or only after the last."""

    def __init__(
        self,
        backbone: Backbone,
        settings: Settings,
        cache: FeatureCache | None = None,
        **options: float,
    ):
        unknown = sorted(set(options) - set(self.defaults))
        if unknown:
            known = ", ".join(self.defaults) or "none"
            raise RememberingError(
                f"method '{self.name}' has no option '{unknown[0]}'; its options are {known}"
            )
        self.backbone = backbone
        self.settings = settings
        self.cache = cache
        self.options = {**self.defaults, **options}
        for option, value in self.options.items():
            if not 0 <= value < math.inf:
                raise RememberingError(
                    f"option {self.name}.{option} = {value:g} must be a finite number, 0 or more"
                )
        self.classes: tuple[Label, ...] = ()
        self.learned = 0
        self.tensors: dict[str, Tensor] = {}
        self.extra_state: dict[str, Any] = {}
        self.set_up()

    def set_up(self) -> None:  # noqa: B027 (most have nothing before their first task)
        """Make what there is before the first task."""

    @abstractmethod
    def learn_task(self, task: Task, progress: Progress) -> None:
        """Learn the next task, number `learned`; its labels are in `classes` already."""

    @abstractmethod
    def scores(self, images: ImageSequence) -> Tensor:
        """How much each image, looked at alone, is of each class: (n, classes)."""

    @property
    def trained(self) -> int:
        """Parameters that gradient descent changes."""
        return 0

    def learn(self, task: Task, progress: Progress = SILENT) -> None:
        """Learn the next task. If it fails for any reason, all is as it was before."""
        task.check_learnable()
        if self.classes and type(self.classes[0]) is not type(task.classes[0]):
            raise RememberingError(
                f"task '{task.name}' has {type(task.classes[0]).__name__} labels, but the tasks "
                f"before it have {type(self.classes[0]).__name__} labels; use one kind"
            )
        before = self.classes, dict(self.tensors), copy.deepcopy(self.extra_state)
        self.classes = tuple(dict.fromkeys([*self.classes, *task.classes]))
        try:
            self.learn_task(task, progress)
        except BaseException:
            self.classes, self.tensors, self.extra_state = before
            raise
        self.learned += 1

    def predict(self, images: Any) -> list[Label]:
        """Answer images, each alone, without their task."""
        if not self.learned:
            raise RememberingError(f"method '{self.name}' has learned no task yet")
        return [self.classes[i] for i in self.scores(as_images(images)).argmax(1).tolist()]

    def made_once(
        self,
        parts: Sequence[Sequence[Tensor]],
        images: ImageSequence,
        make: Callable[[Sequence[int]], Sequence[Tensor]],
    ) -> Sequence[Tensor]:
        """What each of these parts, which learning leaves alone, makes of images.

        Methods are asked about the same images after each task: with a cache, `make` is only asked
        for parts, by position, that have not seen these images yet.
        """
        if self.cache is None:
            return make(range(len(parts)))
        who = f"{self.name} {self.options} {self.settings.first_layer}"
        makers = [f"{who} {digest(tensors)}" for tensors in parts]
        return self.cache.made(self.backbone, makers, images, make)

    def finalize(self) -> None:  # noqa: B027 (most put off nothing)
        """Do now what was put off until the first answer."""

    def targets(self, labels: Sequence[Label]) -> Tensor:
        """Position of each label in `classes`."""
        position = {label: i for i, label in enumerate(self.classes)}
        return torch.tensor([position[label] for label in labels])

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors that must be kept to go on learning and to answer."""
        return self.tensors

    def footprint(self) -> Kept:
        """What is kept beside the frozen backbone, counted."""
        return Kept.of(self.state_dict())

    def save(self, path: Path) -> None:
        """Write one safetensors file, atomically."""
        tensors = {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in sorted(self.state_dict().items())
        }
        meta = {
            "version": VERSION,
            "method": self.name,
            "options": self.options,
            "settings": schema.write(self.settings),
            "backbone": self.backbone.fingerprint(),
            "classes": self.classes,
            "learned": self.learned,
            "extra_state": self.extra_state,
            "sha256": digest(tensors.values()),
        }
        write_atomic(path, save(tensors, metadata={"remembering": json.dumps(meta)}))

    @classmethod
    def load(cls, path: Path, backbone: Backbone, cache: FeatureCache | None = None) -> Self:
        """Read what `save` wrote; it answers and goes on learning with the same bits."""
        try:
            with safe_open(path, framework="pt") as file:
                meta = json.loads((file.metadata() or {})["remembering"])
                tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
            if digest(tensors.values()) != meta["sha256"]:
                raise ValueError("its checksum is wrong")
            if (meta["version"], meta["method"]) != (VERSION, cls.name):
                raise ValueError(f"it holds {meta['method']}, version {meta['version']}")
            if meta["backbone"] != backbone.fingerprint():
                raise ValueError("it was learned on another backbone")
            settings = schema.read(Settings, meta["settings"], str(path))
            learner = cls(backbone, settings, cache, **meta["options"])
            learner.classes = tuple(meta["classes"])
            learner.learned = meta["learned"]
            learner.extra_state = meta["extra_state"]
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise RememberingError(f"{path} cannot be used ({error})") from error
        # Copies, aligned as torch's own: how a product is rounded depends on where tensors lie.
        device = backbone.device
        learner.load_state_dict({name: value.clone().to(device) for name, value in tensors.items()})
        return learner

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave when it was saved."""
        self.tensors = tensors


class FrozenFeatures(Baseline):
    """What methods share that only read features of the frozen backbone.

    They say what a class is from features (`learn_features`) and score features
    (`feature_scores`); each image is encoded once, also across methods that share a cache.
    """

    @abstractmethod
    def learn_features(self, features: Tensor, targets: Tensor) -> None:
        """Take in one task: features (n, dim), and the position in `classes` of each."""

    @abstractmethod
    def feature_scores(self, features: Tensor) -> Tensor:
        """(n, dim) to (n, classes); each row by itself."""

    def learn_task(self, task: Task, progress: Progress) -> None:
        with progress.track(f"reading {task.name} ({self.title})", len(task)) as step:
            features = self.features(task.images)
            step(len(task))
        self.learn_features(features, self.targets(task.labels).to(features.device))

    def scores(self, images: ImageSequence) -> Tensor:
        return self.feature_scores(self.features(images))

    def features(self, images: ImageSequence, depth: int | None = None) -> Tensor:
        """The normalised CLS token after `depth` layers, all of them unless given: (n, dim)."""
        depth = self.backbone.depth if depth is None else depth
        if self.cache is None:
            return frozen_features(self.backbone, images, depth)
        return self.cache.features(self.backbone, images, depth)


class SingleAdapter(Baseline, Callback):
    """What methods share that train one adapter and one head over all classes seen.

    A method changes the loss (`loss`), the gradients (`gradients`) or looks at each step
    (`on_step_end`), as `training.Callback` says; `begin` and `end` come before and after the training of
    a task, and `training_set` says what is trained on.
    """

    def set_up(self) -> None:
        self.start_anew()

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        """Before a task is trained; `adapter` and `head` are the old ones."""

    def end(self, task: Task, training_set: TrainingSet) -> None:
        """After a task is trained; `adapter` and `head` are the new ones."""

    def training_set(self, task: Task, head: Head) -> TrainingSet:
        """What a task is trained on."""
        token_cache = TokenCache(self.backbone, task.images, self.settings.first_layer).filled()
        name = f"{task.name} ({self.title})"
        return TrainingSet(token_cache, head.targets(task.labels), name, self.learned)

    def start_anew(self) -> None:
        """An adapter and a head that know nothing."""
        settings = self.settings
        rng = generator(settings.seed, "baseline")
        self.adapter = Adapter.new(self.backbone, settings.rank, settings.first_layer, rng)
        self.head = Head.linear((), self.backbone)

    def learn_task(self, task: Task, progress: Progress) -> None:
        head = self.head.extended(task.classes)
        training_set = self.training_set(task, head)
        self.begin(task, training_set)
        self.adapter, self.head = train(
            self.backbone,
            self.adapter,
            head,
            training_set,
            self.settings,
            None,
            progress,
            callback=self,
        )
        self.end(task, training_set)

    @torch.no_grad()
    def scores(self, images: ImageSequence) -> Tensor:
        return self.outputs(
            TokenCache(self.backbone, images, self.settings.first_layer), len(images)
        )

    @torch.no_grad()
    def outputs(self, token_cache: TokenCache, count: int) -> Tensor:
        """What the adapter and head say now, of `count` images in a row: (n, their classes)."""
        adapter, head = self.adapter, self.head
        parts = [
            logits(self.backbone, adapter, head, token_cache[index]) for index in batches(count)
        ]
        return torch.cat(parts)

    @torch.no_grad()
    def features(self, token_cache: TokenCache, count: int) -> Tensor:
        """What the head reads of the first `count` images: (n, dim)."""
        pool, adapter = self.backbone.pool, self.adapter
        parts = [
            pool(adapted(self.backbone, adapter, token_cache[index])) for index in batches(count)
        ]
        return torch.cat(parts)

    def outputs_before(self, batch: Batch, kept: Tensor) -> Tensor:
        """What adapter and head said of a batch before the task under training: kept for images as
        they are, said anew of augmented ones."""
        if self.settings.augment == "none":
            return kept[batch.index]
        with torch.no_grad():
            return logits(self.backbone, self.adapter, self.head, batch.tokens)

    def features_before(self, batch: Batch, kept: Tensor) -> Tensor:
        """What the head read of a batch before the task under training; as `outputs_before`."""
        if self.settings.augment == "none":
            return kept[batch.index]
        with torch.no_grad():
            return self.backbone.pool(adapted(self.backbone, self.adapter, batch.tokens))

    @property
    def adapter(self) -> Adapter:
        """The one adapter."""
        kept = self.tensors
        return Adapter(kept["adapter.a"], kept["adapter.b"], self.settings.first_layer)

    @adapter.setter
    def adapter(self, adapter: Adapter) -> None:
        self.tensors |= {"adapter.a": adapter.a, "adapter.b": adapter.b}

    @property
    def head(self) -> Head:
        """The one head; within `learn_task` it knows the classes of the tasks before."""
        weight = self.tensors["head.weight"]
        rows = len(weight)
        return Head(self.classes[:rows], weight, self.tensors["head.bias"], torch.arange(rows))

    @head.setter
    def head(self, head: Head) -> None:
        self.tensors |= {"head.weight": head.weight, "head.bias": head.bias}

    @property
    def trained(self) -> int:
        return self.adapter.parameters + self.head.parameters


class TunedOnce(SingleAdapter):
    """What methods share whose adapter is trained with the first task only, by cross entropy.

    Like those on frozen features they then take in features (`learn_features`) and score features
    (`feature_scores`).
    """

    @abstractmethod
    def learn_features(self, features: Tensor, targets: Tensor) -> None:
        """Take in one task: features (n, dim), and the position in `classes` of each."""

    @abstractmethod
    def feature_scores(self, features: Tensor) -> Tensor:
        """(n, dim) to (n, classes); each row by itself."""

    def learn_task(self, task: Task, progress: Progress) -> None:
        if not self.learned:
            super().learn_task(task, progress)
            del self.tensors["head.weight"], self.tensors["head.bias"]
        with progress.track(f"reading {task.name} ({self.title})", len(task)) as step:
            features = self.read(task.images)
            step(len(task))
        self.learn_features(features, self.targets(task.labels).to(features.device))

    def read(self, images: ImageSequence) -> Tensor:
        """What the head read of images when there was one: (n, dim)."""
        token_cache = TokenCache(self.backbone, images, self.settings.first_layer)
        return self.features(token_cache, len(images))

    @torch.no_grad()
    def scores(self, images: ImageSequence) -> Tensor:
        tuned = [(self.adapter.a, self.adapter.b)]
        return self.feature_scores(self.made_once(tuned, images, lambda _: [self.read(images)])[0])

    @property
    def trained(self) -> int:
        return self.adapter.parameters


def parameters(adapter: Adapter, head: Head) -> dict[str, Tensor]:
    """What training changes, by name."""
    return {"a": adapter.a, "b": adapter.b, "weight": head.weight, "bias": head.bias}


def accuracy(answers: Sequence[Label], labels: Sequence[Label]) -> float:
    """Share of right answers."""
    return sum(a == b for a, b in zip(answers, labels, strict=True)) / len(labels)
