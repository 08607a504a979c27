"""What each command can be told: its options are the fields, their help the words below them.

Light, like `config.py`: `--help` reads this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from remembering.config import Settings
from remembering.experiments.spec import Experiment


@dataclass(frozen=True)
class Demo:
    """Learn scikit-learn's digits in five tasks, answer single images, draw a page of plots."""

    out: Path | None = None
    """Folder for model, results and plots; runs/demo by default."""


@dataclass(frozen=True)
class Run:
    """Run an experiment by name, or from a TOML file; every setting is also an option."""

    name: tyro.conf.Positional[str] = ""
    """Name (see --list) or TOML file."""
    small: bool = False
    """Smaller settings that finish in minutes on two cores."""
    seeds: str = ""
    """Several seeds, such as 0,1,2: one run each, and their mean."""
    out: Path | None = None
    """Folder of the run; runs/NAME by default."""
    resume: bool = False
    """Go on with the run in the folder."""
    save_steps: int = 0
    """Save progress within a task after so many steps, beside after each epoch."""
    tracker: str | None = None
    """Tell losses and accuracies to tensorboard (files in the run's logs folder), wandb, mlflow, or
    another of accelerate's trackers."""
    list: bool = False
    """List the experiments and end."""
    experiment: Annotated[Experiment, tyro.conf.arg(name="")] = field(default_factory=Experiment)


@dataclass(frozen=True)
class Compare:
    """Run rivals and ours on one experiment, and print a table; goes on where it stopped."""

    name: tyro.conf.Positional[str]
    """Experiment by name (see remember run --list), or TOML file."""
    small: bool = False
    """Smaller settings that finish in minutes on two cores."""
    methods: str = "all"
    """all, or some by name, such as ours,ewc,ranpac; --list names them."""
    options: tuple[str, ...] = ()
    """Options of methods, such as ewc.strength=100 der.memory=500, in place of the experiment's and
    of their defaults."""
    seeds: str = "0,1,2"
    """Seeds; the table gives mean and deviation over them."""
    backbone: str | None = None
    """bundled, a folder in hub layout, or a hub name, in place of the experiment's."""
    image_size: int | None = None
    """Input size, in place of the experiment's."""
    data: str | None = None
    """Folder with the data in its published layout; else cache, hub or package registry."""
    out: Path | None = None
    """Folder of the comparison; runs/compare/NAME by default."""
    list: bool = False
    """List the methods and end."""


@dataclass(frozen=True)
class Learn:
    """Teach a model one more task: a folder of class folders."""

    model_dir: tyro.conf.Positional[Path]
    """Folder of the model; created if it is not there."""
    folder: tyro.conf.Positional[Path]
    """Folder with one folder of images per class."""
    name: str | None = None
    """Name of the task; the folder's name by default."""
    backbone: str | None = None
    """bundled (the default), a folder in hub layout, or a hub name; or where it is now."""
    image_size: int | None = None
    """For a new model: input size, if not the checkpoint's own."""
    resume: bool = False
    """Go on with this task where a process that died had left it."""
    save_steps: int = 0
    """Save progress after so many steps, beside after each epoch."""
    settings: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)


@dataclass(frozen=True)
class Predict:
    """Answer images without being told which task they belong to."""

    model_dir: tyro.conf.Positional[Path]
    """Folder of the model."""
    images: tyro.conf.Positional[tuple[Path, ...]]
    """Image files, or folders of them."""
    together: bool = False
    """Images of one folder come from one source: route them together."""
    unknown: float | None = None
    """Flag images that are like nothing learned; of known ones about this share, such as 0.05."""
    json: bool = False
    """Print JSON."""
    csv: bool = False
    """Print CSV."""
    backbone: str | None = None
    """Where the model's backbone is now, if it moved."""


@dataclass(frozen=True)
class Inspect:
    """Show what a model has learned: tasks, classes, adapters, gate, footprint."""

    model_dir: tyro.conf.Positional[Path]
    """Folder of the model."""
    verify: bool = False
    """Check every file against the manifest instead."""
    json: bool = False
    """Print JSON."""
    backbone: str | None = None
    """Where the model's backbone is now, if it moved."""


@dataclass(frozen=True)
class Forget:
    """Remove a task from a model, with its replay images, and its adapter unless shared."""

    model_dir: tyro.conf.Positional[Path]
    """Folder of the model."""
    task: tyro.conf.Positional[str]
    """Name of the task."""
    backbone: str | None = None
    """Where the model's backbone is now, if it moved."""


@dataclass(frozen=True)
class Report:
    """Write one HTML page and plots from finished runs and comparisons."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs or comparisons, or folders of them."""
    out: Path = Path("report")
    """Folder of the page."""
    markdown: Path | None = None
    """Write the tables to this Markdown file instead."""
    intro: Path | None = None
    """With --markdown: a Markdown file that comes first."""
