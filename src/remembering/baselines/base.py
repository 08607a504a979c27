"""The base class of all baselines.

A method keeps everything that it has learned in `tensors`, by name, and in `extra_state`, which
must be representable in JSON. From these two, the base class counts the footprint, saves and loads
the method, and undoes a task that failed.
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
from remembering.backbones.backbone import Backbone
from remembering.baselines.features import FeatureCache
from remembering.config import Settings
from remembering.data.conversion import as_images
from remembering.data.images import ImageSequence, ImagesLike
from remembering.data.task import Label, Task
from remembering.errors import RememberingError
from remembering.inference.encoding import frozen_features
from remembering.learner import Footprint
from remembering.learning.checkpoint import digest
from remembering.runtime.files import write_atomic
from remembering.runtime.progress import SILENT, Progress

VERSION = 2


@dataclass(frozen=True, eq=False)
class BaselinePrediction:
    """Answers to n images.

    Attributes:
        labels: The label with the highest score of each image.
        scores: (n, classes). Their scale depends on the method.
        classes: Labels of the columns of `scores`.
    """

    labels: list[Label]
    scores: Tensor
    classes: tuple[Label, ...]


class Baseline(ABC):
    """A continual learner on the same frozen backbone, with the same settings.

    To add a baseline, subclass `Baseline`, `FrozenFeatures`, `SingleAdapter` or `FirstSession` in
    a new file and add the class to `remembering.baselines.BASELINES`;
    `tests/baselines/test_contract.py` then covers it. Replace the tensors in `tensors`, never
    change them in place: this is how a task that failed is undone. Row i of everything that is kept
    per class belongs to `classes[i]`.

    Args:
        backbone: The frozen backbone.
        settings: How adapters are trained.
        cache: Shares features of frozen models with other methods.
        options: Options of the method, in place of its `defaults`.

    Raises:
        RememberingError: If the method does not have an option, or its value is invalid.
    """

    name: ClassVar[str]
    """Name on the command line."""
    title: ClassVar[str]
    """Name in tables."""
    reference: ClassVar[str]
    """The publication."""
    published: ClassVar[str | None] = None
    """Its row in the paper's Table 1, if it has one and the adaptation is close enough to the
    publication to be compared with it (docs/baselines.md)."""
    stores: ClassVar[str]
    """What the method keeps, in a sentence."""
    defaults: ClassVar[Mapping[str, float]] = {}
    """Options and their default values. `memory` is the total number of training images that the
    method keeps; an experiment sets it to the same number for all methods (see `exemplars`)."""
    every_task: ClassVar[bool] = True
    """Whether an experiment evaluates the method after each task, or only after the last."""
    adapts_as_model: ClassVar[bool] = False
    """Whether an experiment gives the method the settings of its model, because it trains one
    adapter on the first task as that does, or those of the published configuration."""

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

    def set_up(self) -> None:  # noqa: B027 (most methods start empty)
        """Create what exists before the first task."""

    @abstractmethod
    def learn_task(self, task: Task, progress: Progress) -> None:
        """Learn task number `learned`; its labels are in `classes` already."""

    @abstractmethod
    def scores(self, images: ImageSequence) -> Tensor:
        """Return the scores (n, classes) of images, each on its own."""

    @property
    def trained(self) -> int:
        """Number of parameters that gradient descent changes."""
        return 0

    def learn(self, task: Task, *, progress: Progress = SILENT) -> None:
        """Learn the next task. If this fails for any reason, the method is unchanged."""
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

    def predict(self, images: ImagesLike) -> BaselinePrediction:
        """Answer images, each on its own, without knowing their task."""
        if not self.learned:
            raise RememberingError(f"method '{self.name}' has not learned a task yet")
        self.finalize()
        scores = self.scores(as_images(images))
        labels = [self.classes[i] for i in scores.argmax(1).tolist()]
        return BaselinePrediction(labels, scores, self.classes)

    def made_once(
        self,
        makers: Sequence[str],
        images: ImageSequence,
        make: Callable[[Sequence[int]], Sequence[Tensor]],
    ) -> Sequence[Tensor]:
        """Return what is computed from images, from the cache if there is one.

        A method predicts the same test images after each task, and parts that later tasks do not
        change have the same output each time. Methods with equal keys share outputs.

        Args:
            makers: A key for each output, which identifies what computes it.
            images: The input images.
            make: Computes the outputs at the given positions.
        """
        if self.cache is None:
            return make(range(len(makers)))
        return self.cache.made(self.backbone, makers, images, make)

    def finalize(self) -> None:  # noqa: B027 (most methods defer nothing)
        """Complete training that was deferred until the first prediction."""

    def targets(self, labels: Sequence[Label]) -> Tensor:
        """Return the position of each label in `classes`."""
        position = {label: i for i, label in enumerate(self.classes)}
        return torch.tensor([position[label] for label in labels])

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors that are needed to predict and to learn further."""
        return self.tensors

    def footprint(self) -> Footprint:
        """Count what is kept besides the frozen backbone."""
        return footprint(self.state_dict(), self.trained)

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
    def load(cls, path: Path, *, backbone: Backbone, cache: FeatureCache | None = None) -> Self:
        """Read what `save` wrote; it predicts and learns further with the same bits.

        Raises:
            RememberingError: If the file is damaged, or of another method or backbone.
        """
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
        # Copies that torch aligns: the rounding of a product depends on the alignment of tensors.
        device = backbone.device
        learner.load_state_dict({name: value.clone().to(device) for name, value in tensors.items()})
        return learner

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned when it was saved."""
        self.tensors = tensors


def footprint(tensors: Mapping[str, Tensor], trained: int) -> Footprint:
    """Count tensors by name; those whose name ends in `.images` are replay images."""
    images = [tensor for name, tensor in tensors.items() if name.endswith(".images")]
    return Footprint(
        parameters=sum(t.numel() for t in tensors.values() if t.is_floating_point()),
        bytes=sum(t.nbytes for t in tensors.values()),
        trained=trained,
        replay_images=sum(map(len, images)),
        replay_bytes=sum(t.nbytes for t in images),
    )


class FeatureLearner(Baseline):
    """Base class of methods that learn from a feature vector per image."""

    @abstractmethod
    def features(self, images: ImageSequence) -> Tensor:
        """Return the features (n, dim) of images."""

    @abstractmethod
    def learn_features(self, features: Tensor, targets: Tensor) -> None:
        """Learn a task from its features (n, dim) and the position in `classes` of each."""

    @abstractmethod
    def feature_scores(self, features: Tensor) -> Tensor:
        """Return the scores (n, classes) of features (n, dim), each row on its own."""

    def learn_task(self, task: Task, progress: Progress) -> None:
        with progress.track(f"reading {task.name} ({self.title})", len(task)) as step:
            features = self.features(task.images)
            step(len(task))
        self.learn_features(features, self.targets(task.labels).to(features.device))

    def scores(self, images: ImageSequence) -> Tensor:
        return self.feature_scores(self.features(images))


class FrozenFeatures(FeatureLearner):
    """Base class of methods that read the normalized CLS token of the frozen backbone.

    With a cache, each image is encoded once for all methods that share it.
    """

    def features(self, images: ImageSequence) -> Tensor:
        depth = self.backbone.depth
        if self.cache is None:
            return frozen_features(self.backbone, images, depth)
        return self.cache.features(self.backbone, images, depth)
