"""Who takes part in a comparison: every rival, and ours, behind one face."""

from __future__ import annotations

import difflib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES, Baseline
from remembering.baselines.base import Kept, accuracy
from remembering.baselines.exemplars import PER_CLASS
from remembering.baselines.features import FeatureCache
from remembering.config import RouterSettings, Settings
from remembering.data.images import ImageSequence
from remembering.data.streams.stream import Stream, TaskData
from remembering.data.task import Label, Task
from remembering.errors import RememberingError
from remembering.evaluation.protocols import Evaluator
from remembering.model import RememberingTransformer
from remembering.runtime.progress import Progress


@dataclass(frozen=True)
class About:
    """What a table says of a method."""

    title: str
    reference: str
    stores: str
    published: str | None
    """Its row in the paper's Table 1, if it has one."""
    options: dict[str, float]


class Contestant(ABC):
    """Learns a stream of tasks and is asked about all of them."""

    about: About
    every_task = True
    """Whether it is worth asking after each task, or only after the last."""

    @abstractmethod
    def learn(self, task: Task, last: bool, progress: Progress) -> None:
        """Learn the next task; after the last one, put nothing off."""

    @abstractmethod
    def accuracies(self, tasks: Sequence[TaskData], progress: Progress) -> dict[str, list[float]]:
        """Accuracy on the test images of each of these tasks, by routing unit."""

    @abstractmethod
    def predict(self, images: ImageSequence) -> list[Label]:
        """Answer images, each alone, with nothing remembered from an earlier question."""

    @property
    @abstractmethod
    def trained(self) -> int:
        """Parameters that gradient descent changes."""

    @abstractmethod
    def footprint(self) -> Kept:
        """What is kept beside the frozen backbone."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write what it has learned; `Entry.load` reads it."""


class Rival(Contestant):
    """A method of `baselines/`."""

    def __init__(self, learner: Baseline):
        self.learner = learner
        self.every_task = learner.every_task
        self.about = About(
            learner.title,
            learner.reference,
            learner.stores,
            learner.published,
            dict(learner.options),
        )

    def learn(self, task: Task, last: bool, progress: Progress) -> None:
        self.learner.learn(task, progress)
        if last:
            self.learner.finalize()

    def accuracies(self, tasks: Sequence[TaskData], progress: Progress) -> dict[str, list[float]]:
        found = []
        with progress.track("evaluating", sum(len(data.test) for data in tasks)) as step:
            for data in tasks:
                found.append(accuracy(self.learner.predict(data.test.images), data.test.labels))
                step(len(data.test))
        return {"sample": found}

    def predict(self, images: ImageSequence) -> list[Label]:
        cache, self.learner.cache = self.learner.cache, None
        try:
            return self.learner.predict(images)
        finally:
            self.learner.cache = cache

    @property
    def trained(self) -> int:
        return self.learner.trained

    def footprint(self) -> Kept:
        return self.learner.footprint()

    def save(self, path: Path) -> None:
        self.learner.save(path)


class Ours(Contestant):
    """The Remembering Transformer, asked under some routing units."""

    def __init__(self, model: RememberingTransformer, title: str, units: tuple[str, ...]):
        self.model = model
        self.evaluator = Evaluator(units)
        self.about = About(
            title,
            "Sun et al. (2024), Remembering Transformer for continual learning, arXiv:2404.07518",
            "one adapter, one head and one generative model a task",
            "Ours",
            {},
        )

    def learn(self, task: Task, last: bool, progress: Progress) -> None:
        self.model.learn(task, progress)

    def accuracies(self, tasks: Sequence[TaskData], progress: Progress) -> dict[str, list[float]]:
        score = self.evaluator.score(self.model, tuple(tasks), progress)
        units = self.evaluator.units
        return {unit: [task.accuracy[unit] for task in score.tasks] for unit in units}

    def predict(self, images: ImageSequence) -> list[Label]:
        return self.model.predict(images).labels

    @property
    def trained(self) -> int:
        model, kept = self.model, self.model.footprint()
        if model.settings.router.kind == "autoencoder":
            return kept.total_parameters
        return (
            kept.adapters
            + kept.heads
            + (model.feature_adapter.parameters if model.feature_adapter else 0)
        )

    def footprint(self) -> Kept:
        kept = self.model.footprint()
        images = sum(len(memory.labels) for memory in self.model.memories.values())
        return Kept(kept.total_parameters, kept.bytes, images)

    def save(self, path: Path) -> None:
        self.model.save(path)


@dataclass(frozen=True)
class Entry:
    """How to make a contestant, and how to read one back."""

    new: Callable[[Backbone, Settings, FeatureCache, Mapping[str, float]], Contestant]
    load: Callable[[Path, Backbone, FeatureCache], Contestant]
    title: str
    """As tables show it."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    """Its options; those of ours are the experiment's settings."""

    def options(self, given: Mapping[str, float], stream: Stream) -> dict[str, float]:
        """Those given; and who keeps images may keep as many as the others, unless told so."""
        classes = sum(len(data.train.classes) for data in stream.tasks)
        return {**({"memory": PER_CLASS * classes} if "memory" in self.defaults else {}), **given}


def as_published(settings: Settings) -> Settings:
    """Ours with the paper's router, under the experiment's settings of it."""
    return replace(settings, router=replace(settings.router, kind="autoencoder"))


def by_default(settings: Settings) -> Settings:
    """Ours with the router that a new model has unless told otherwise."""
    return replace(settings, router=RouterSettings())


def _ours(title: str, units: tuple[str, ...], change: Callable[[Settings], Settings]) -> Entry:
    return Entry(
        lambda backbone, settings, cache, options: Ours(
            RememberingTransformer(backbone, change(settings)), title, units
        ),
        lambda path, backbone, cache: Ours(
            RememberingTransformer.load(path, backbone.name), title, units
        ),
        title,
    )


def _rival(method: type[Baseline]) -> Entry:
    def new(
        backbone: Backbone, settings: Settings, cache: FeatureCache, options: Mapping[str, float]
    ) -> Contestant:
        return Rival(method(backbone, settings, cache, **options))

    def load(path: Path, backbone: Backbone, cache: FeatureCache) -> Contestant:
        return Rival(method.load(path, backbone, cache))

    return Entry(new, load, method.title, method.defaults)


CONTESTANTS: dict[str, Entry] = {
    "ours": _ours("Ours, default", ("sample",), by_default),
    "ours-published": _ours("Ours, as published", ("task", "sample"), as_published),
    **{name: _rival(method) for name, method in BASELINES.items()},
}
"""Everyone, by the name that the command knows."""


def titles() -> dict[str, str]:
    """What tables call the methods, by the names that the command knows."""
    return {name: entry.title for name, entry in CONTESTANTS.items()}


def names(wanted: str) -> list[str]:
    """The methods that a list such as "all" or "ewc,lwf" names."""
    chosen = list(CONTESTANTS) if wanted == "all" else [n.strip() for n in wanted.split(",")]
    for name in chosen:
        _known("method", name, CONTESTANTS)
    return list(dict.fromkeys(chosen))


def options(wanted: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, float]]:
    """What words such as "ewc.strength=100" change, by method; all must be among `methods`.

    >>> options(["ewc.strength=100", "ewc.images=50"], ["ewc", "ncm"])
    {'ewc': {'strength': 100.0, 'images': 50.0}}
    """
    found: dict[str, dict[str, float]] = {}
    for word in wanted:
        parts = re.fullmatch(r"([^.=]+)\.([^.=]+)=(.+)", word)
        if parts is None:
            raise RememberingError(
                f"option {word} must be METHOD.OPTION=NUMBER, such as ewc.strength=100"
            )
        method, option, text = parts.groups()
        _known("method", method, CONTESTANTS)
        defaults = CONTESTANTS[method].defaults
        if not defaults:
            raise RememberingError(f"option {word}: method '{method}' has no options")
        _known(f"option of '{method}'", option, defaults)
        if method not in methods:
            raise RememberingError(f"option {word}: '{method}' is not among the --methods")
        if option in found.get(method, {}):
            raise RememberingError(f"options name {method}.{option} twice; give it once")
        found.setdefault(method, {})[option] = _number(word, text)
    return found


def _number(word: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RememberingError(f"option {word}: '{text}' is no finite number")
    return value


def _known(what: str, name: str, among: Mapping[str, object]) -> None:
    if name not in among:
        close = difflib.get_close_matches(name.lower(), among, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(among)}"
        raise RememberingError(f"there is no {what} '{name}'; {hint}")
