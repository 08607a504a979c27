"""Experiments by name: one TOML file each, with the paper's settings and smaller ones.

This module does not import torch: the command reads it to offer every setting as an option.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from remembering import schema
from remembering.config import Settings
from remembering.errors import RememberingError
from remembering.runtime.reading import read_toml

MODEL = "model"
"""The method that an experiment describes: the Remembering Transformer with its settings."""
_FOLDER = Path(__file__).parent / "specs"


@dataclass(frozen=True)
class StreamSettings:
    """The tasks and their order."""

    source: str = "digits"
    """Data set by name, or a folder of class folders; for a sequence, several separated by
    commas."""
    kind: Literal["split", "permute", "sequence"] = "split"
    """split: divide the classes into tasks. permute: permute the pixels. sequence: one data set
    per task."""
    tasks: int = 5
    """Number of tasks."""
    sizes: tuple[int, ...] = ()
    """Number of classes of each task, if they differ (split only)."""
    per_class: int | None = None
    """Training images per class; all by default."""
    test_per_class: int | None = None
    """Test images per class; all by default."""
    data: str | None = None
    """Folder with the data in its published layout; by default the cache, the hub or a package
    registry is used."""


@dataclass(frozen=True)
class Experiment:
    """One row of a table, or one curve of a figure."""

    description: str = ""
    """What the experiment shows, in a sentence."""
    backbone: str = "bundled"
    """bundled, a folder in hub layout, or a hub name."""
    image_size: int | None = None
    """Input size in pixels, if not the checkpoint's own."""
    total_epochs: int | None = None
    """Epochs of the published configuration, divided evenly over the tasks as in the paper."""
    units: tuple[str, ...] = ("sample", "group_32", "group_128", "task")
    """Routing units to report."""
    baselines: tuple[str, ...] = ("finetune", "joint")
    """Methods to run on the same backbone; remember compare --list names them."""
    options: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Options of the baselines for this experiment, such as "ewc.strength=100", selected on
    training images."""
    stream: Annotated[StreamSettings, tyro.conf.arg(name="")] = field(
        default_factory=StreamSettings
    )
    learning: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)
    published: tyro.conf.Suppress[Settings | None] = None
    """The paper's configuration on this stream, with an adapter and an autoencoder per task;
    baselines share its rank, epochs, batch size and learning rate. If None, `learning` is it."""

    def __post_init__(self) -> None:
        if self.total_epochs is not None and self.total_epochs < 1:
            raise RememberingError(f"total_epochs = {self.total_epochs} must be at least 1")

    def published_settings(self, tasks: int) -> Settings:
        """Return the published configuration for some number of tasks, with the run's seed."""
        settings = replace(self.published or self.learning, seed=self.learning.seed)
        if self.total_epochs is None:
            return settings
        return replace(settings, epochs=max(1, self.total_epochs // tasks))

    def model_settings(self, tasks: int) -> Settings:
        """Return the settings of the model that the experiment describes."""
        return self.learning if self.published else self.published_settings(tasks)


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines the result of one method under one seed.

    Attributes:
        experiment: Name of the experiment.
        method: Name of the method.
        settings: Settings of the experiment, including the seed.
        variant: Variant of the experiment, such as E=3.
        small: Whether these are the experiment's smaller settings.
        options: Options of the method that differ from its defaults.
        command: Words of the command, without what selects methods, seeds and folders.
    """

    experiment: str
    method: str
    settings: Experiment
    variant: str | None = None
    small: bool = False
    options: dict[str, float] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        """The seed."""
        return self.settings.learning.seed

    def comparable(self) -> RunConfig:
        """Return this configuration without what may differ between runs shown together.

        These are the seed, the description, the command, and the lists of other methods.
        """
        settings = replace(with_seed(self.settings, 0), description="", baselines=(), options=())
        return replace(self, settings=settings, command=())


@dataclass(frozen=True)
class ExperimentFile:
    """A TOML file with the settings of an experiment, smaller settings, and variants."""

    name: str
    path: Path
    table: dict[str, Any]

    @property
    def description(self) -> str:
        """What the experiment shows, in a sentence."""
        return str(self.table.get("description", ""))

    def variants(self, small: bool = False) -> dict[str | None, Experiment]:
        """Return the experiment's variants by name, or a single one without a name."""
        base = {k: v for k, v in self.table.items() if k not in ("small", "variants")}
        changes = self.table.get("variants", {})
        if small:
            if "small" not in self.table:
                raise RememberingError(
                    f"{self.path} has no [small] settings; run it without --small"
                )
            base = _merged(base, self.table["small"])
            changes = base.pop("variants", changes)
        if "published" in base:
            base["published"] = _merged(schema.write(Settings.paper()), base["published"])
        variants = _merged({}, changes)
        if not variants:
            return {None: schema.read(Experiment, base, str(self.path))}
        return {
            name: schema.read(Experiment, _merged(base, change), f"{self.path} ({name})")
            for name, change in variants.items()
        }


def names() -> list[str]:
    """Return the names of the experiments that the library contains."""
    paths = (path.relative_to(_FOLDER).with_suffix("") for path in _FOLDER.rglob("*.toml"))
    return sorted(path.as_posix() for path in paths)


def find(name: str) -> ExperimentFile:
    """Return an experiment by name, or by the path of a TOML file."""
    path = Path(name)
    if path.suffix == ".toml":
        name = path.stem
    else:
        path = _FOLDER / f"{name}.toml"
        if name not in names():
            close = difflib.get_close_matches(name, names(), n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(names())}"
            raise RememberingError(f"there is no experiment '{name}'; {hint}")
    return ExperimentFile(name, path, read_toml(path))


def with_seed(experiment: Experiment, seed: int) -> Experiment:
    """Return the experiment with another seed."""
    return replace(experiment, learning=replace(experiment.learning, seed=seed))


def _merged(base: dict[str, Any], change: Any) -> dict[str, Any]:
    if not isinstance(change, dict):
        raise RememberingError(f"{change!r} stands where a table of settings is needed")
    result = dict(base)
    for key, value in change.items():
        old = result.get(key)
        nested = isinstance(old, dict) and isinstance(value, dict)
        result[key] = _merged(old, value) if nested else value  # type: ignore[arg-type]
    return result
