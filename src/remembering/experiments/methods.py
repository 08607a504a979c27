"""The registry of methods: every baseline, and the Remembering Transformer with several routers."""

from __future__ import annotations

import difflib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES, Baseline
from remembering.baselines.exemplars import PER_CLASS
from remembering.baselines.features import FeatureCache
from remembering.config import Settings
from remembering.data.streams.stream import Stream
from remembering.errors import RememberingError
from remembering.experiments.evaluator import Evaluator
from remembering.experiments.result import MethodInfo
from remembering.experiments.spec import MODEL, Experiment
from remembering.learner import Learner
from remembering.model import RememberingTransformer

Options = Mapping[str, float]


@dataclass(frozen=True)
class Context:
    """What all runs of an experiment with one seed share."""

    experiment: Experiment
    stream: Stream
    backbone: Backbone
    cache: FeatureCache

    @property
    def published_settings(self) -> Settings:
        """The paper's configuration; baselines that train on every task share its budget."""
        return self.experiment.published_settings(len(self.stream.tasks))

    @property
    def model_settings(self) -> Settings:
        """The settings of the model that the experiment describes."""
        return self.experiment.model_settings(len(self.stream.tasks))


@dataclass(frozen=True)
class Method(ABC):
    """A way to create, load and evaluate a learner.

    Attributes:
        title: Name in tables.
        reference: The publication.
        stores: What the learner keeps, in a sentence.
        published: Its row in the paper's Table 1, if it has one.
        defaults: Options of the method and their default values.
        every_task: Whether to evaluate after each task, or only after the last.
        state: Name of the file or folder that `Learner.save` writes.
    """

    title: str
    reference: str
    stores: str
    published: str | None
    defaults: Options
    every_task: bool
    state: ClassVar[str]

    @abstractmethod
    def new(self, context: Context, options: Options) -> Learner:
        """Return a learner before its first task.

        Raises:
            RememberingError: If the options or settings do not fit.
        """

    @abstractmethod
    def load(self, path: Path, context: Context) -> Learner:
        """Read what the learner saved."""

    @abstractmethod
    def evaluator(self, context: Context) -> Evaluator:
        """Return the evaluator of the learner."""

    def options(self, overrides: Options, stream: Stream) -> dict[str, float]:
        """Return the values of all options for a stream.

        All methods with a replay memory get one of the same size, unless it is overridden.
        """
        classes = sum(len(data.train.classes) for data in stream.tasks)
        memory = {"memory": PER_CLASS * classes} if "memory" in self.defaults else {}
        return {**self.defaults, **memory, **overrides}

    def changed(self, overrides: Options) -> dict[str, float]:
        """Return the overrides that change something.

        The default size of a replay memory depends on the stream, so its overrides are all kept.
        """
        return {
            name: value
            for name, value in overrides.items()
            if name == "memory" or value != self.defaults[name]
        }

    def info(self, options: Options) -> MethodInfo:
        """Describe the method and the values of its options."""
        return MethodInfo(self.title, self.reference, self.stores, self.published, dict(options))


@dataclass(frozen=True)
class BaselineMethod(Method):
    """A baseline."""

    kind: type[Baseline]
    state = "state.safetensors"

    @classmethod
    def of(cls, kind: type[Baseline]) -> BaselineMethod:
        """Return the method of a baseline."""
        facts = (kind.title, kind.reference, kind.stores, kind.published)
        return cls(*facts, kind.defaults, kind.every_task, kind)

    def new(self, context: Context, options: Options) -> Learner:
        as_model = self.kind.adapts_as_model
        settings = context.model_settings if as_model else context.published_settings
        return self.kind(context.backbone, settings, context.cache, **options)

    def load(self, path: Path, context: Context) -> Learner:
        return self.kind.load(path, backbone=context.backbone, cache=context.cache)

    def evaluator(self, context: Context) -> Evaluator:
        return Evaluator()


@dataclass(frozen=True)
class Ours(Method):
    """The Remembering Transformer in some configuration.

    Attributes:
        configure: Returns the settings for an experiment and the options of the method.
        units: Routing units to report. If None, those of the experiment.
    """

    configure: Callable[[Context, Options], Settings]
    units: tuple[str, ...] | None = None
    state = "model"

    @classmethod
    def of(
        cls,
        title: str,
        stores: str,
        configure: Callable[[Context, Options], Settings],
        units: tuple[str, ...] | None = ("sample",),
        published: str | None = None,
        defaults: Options = MappingProxyType({}),
    ) -> Ours:
        """Return the method of a configuration."""
        paper = "Sun et al. (2024), Remembering Transformer for continual learning, "
        facts = (title, f"{paper}arXiv:2404.07518", stores, published, defaults, True)
        return cls(*facts, configure, units)

    def new(self, context: Context, options: Options) -> Learner:
        return RememberingTransformer(context.backbone, self.configure(context, options))

    def load(self, path: Path, context: Context) -> Learner:
        return RememberingTransformer.load(path, backbone=context.backbone)

    def evaluator(self, context: Context) -> Evaluator:
        return Evaluator(context.experiment.units if self.units is None else self.units)


def _with_replay(context: Context, images: float) -> Settings:
    """Keep some images in all, and consolidate at least once at the end of the stream."""
    tasks = len(context.stream.tasks)
    return replace(
        context.model_settings,
        memory=int(images) // tasks,
        consolidate_every=min(tasks, CONSOLIDATE_EVERY),
    )


def _classes(context: Context) -> int:
    """Count the classes of all tasks."""
    return sum(len(data.train.classes) for data in context.stream.tasks)


CONSOLIDATE_EVERY = 10
"""Tasks between consolidations in experiments with replay."""
_STATISTICS = "an adapter per domain, class means, and one covariance matrix per adapter"
METHODS: dict[str, Method] = {
    "ours": Ours.of("Ours", _STATISTICS, lambda context, _: context.model_settings),
    "ours-replay": Ours.of(
        "Ours, with replay",
        f"{_STATISTICS}; replay images",
        lambda context, options: _with_replay(context, options["memory"]),
        defaults=MappingProxyType({"memory": 200}),
    ),
    "ours-replay-50": Ours.of(
        "Ours, with replay of 50 per class",
        f"{_STATISTICS}; replay images",
        lambda context, options: _with_replay(context, options["per_class"] * _classes(context)),
        defaults=MappingProxyType({"per_class": 50}),
    ),
    "ours-first": Ours.of(
        "Router alone, first task's adapter",
        "one adapter, class means and one covariance matrix",
        lambda context, _: replace(context.model_settings, adapters="first"),
    ),
    "ours-published": Ours.of(
        "Ours, as published",
        "one adapter, one head and one autoencoder per task",
        lambda context, _: context.published_settings,
        units=("sample", "task"),
        published="Ours",
    ),
    **{name: BaselineMethod.of(kind) for name, kind in BASELINES.items()},
}
"""Methods that can be compared, by name."""


def find_method(name: str) -> Method:
    """Return a method by name; "model" is the model that an experiment describes."""
    if name == MODEL:
        return Ours.of(
            "Remembering Transformer",
            "adapters, and what decides between them",
            lambda context, _: context.model_settings,
            units=None,
            published="Ours",
        )
    _require("method", name, METHODS)
    return METHODS[name]


def titles() -> dict[str, str]:
    """Return the titles of all methods by name."""
    return {name: method.title for name, method in METHODS.items()}


def parse_methods(text: str) -> list[str]:
    """Parse a list of methods such as "all" or "ewc,lwf"."""
    chosen = list(METHODS) if text == "all" else [name.strip() for name in text.split(",")]
    for name in chosen:
        _require("method", name, METHODS)
    return list(dict.fromkeys(chosen))


def parse_options(words: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, float]]:
    """Parse options of methods.

    Args:
        words: Such as "ewc.strength=100".
        methods: Names of the methods that may have options.

    Returns:
        Options by method.

    >>> parse_options(["ewc.strength=100", "ewc.images=50"], ["ewc", "ncm"])
    {'ewc': {'strength': 100.0, 'images': 50.0}}
    """
    found: dict[str, dict[str, float]] = {}
    for word in words:
        parts = re.fullmatch(r"([^.=]+)\.([^.=]+)=(.+)", word)
        if parts is None:
            raise RememberingError(
                f"option {word} must be METHOD.OPTION=NUMBER, such as ewc.strength=100"
            )
        method, option, text = parts.groups()
        _require("method", method, METHODS)
        defaults = METHODS[method].defaults
        if not defaults:
            raise RememberingError(f"option {word}: method '{method}' has no options")
        _require(f"option of '{method}'", option, defaults)
        if method not in methods:
            raise RememberingError(f"option {word}: '{method}' is not among the --methods")
        if option in found.get(method, {}):
            raise RememberingError(f"options contain {method}.{option} twice; give it once")
        found.setdefault(method, {})[option] = _number(word, text)
    return found


def _number(word: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RememberingError(f"option {word}: '{text}' is not a finite number")
    return value


def _require(what: str, name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        close = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(known)}"
        raise RememberingError(f"there is no {what} '{name}'; {hint}")
