"""Experiments by name: one TOML file each, the paper's settings, and smaller ones that finish here.

Light on purpose (no torch): the command reads these to offer every setting as an option.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from remembering import schema
from remembering.config import RouterSettings, Settings
from remembering.errors import RememberingError

_FOLDER = Path(__file__).parent / "specs"


@dataclass(frozen=True)
class StreamSettings:
    """Which tasks come, in which order."""

    source: str = "digits"
    """Data set by name, or a folder of class folders; several for a sequence, by commas."""
    kind: Literal["split", "permute", "sequence"] = "split"
    """split: classes dealt out. permute: pixels shuffled. sequence: one data set a task."""
    tasks: int = 5
    """Number of tasks."""
    sizes: tuple[int, ...] = ()
    """Classes of each task, if they are not to be equal (split only)."""
    per_class: int | None = None
    """Training images per class; all by default."""
    test_per_class: int | None = None
    """Test images per class; all by default."""
    data: str | None = None
    """Folder with the data in its published layout; else cache, hub or package registry."""


@dataclass(frozen=True)
class Experiment:
    """One row of a table, or one curve of a figure."""

    description: str = ""
    """What it shows, in a sentence."""
    backbone: str = "bundled"
    """bundled, a folder in hub layout, or a hub name."""
    image_size: int | None = None
    """Input size, if not the checkpoint's own."""
    total_epochs: int | None = None
    """Epochs split evenly over the tasks, as in the paper; overrides epochs."""
    units: tuple[str, ...] = ("sample", "group_32", "group_128", "task")
    """Routing units that are reported."""
    baselines: tuple[str, ...] = ("finetune", "joint")
    """References on the same backbone: finetune, joint, or any method of remember compare."""
    options: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Options of those methods that suit this experiment, such as "ewc.strength=100"; chosen on
    training images."""
    stream: Annotated[StreamSettings, tyro.conf.arg(name="")] = field(
        default_factory=StreamSettings
    )
    learning: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)
    compared: tyro.conf.Suppress[RouterSettings | None] = None
    """A second router that is routed by on the same adapters: the paper's, say."""

    def __post_init__(self) -> None:
        if self.total_epochs is not None and self.total_epochs < 1:
            raise RememberingError(f"total_epochs = {self.total_epochs} must be at least 1")

    def epochs(self, tasks: int) -> int:
        """Epochs of each of so many tasks."""
        if self.total_epochs is None:
            return self.learning.epochs
        return max(1, self.total_epochs // tasks)


@dataclass(frozen=True)
class ExperimentFile:
    """An experiment as its file gives it: settings, smaller settings, variants."""

    name: str
    path: Path
    table: dict[str, Any]

    @property
    def description(self) -> str:
        """What it shows, in a sentence."""
        return str(self.table.get("description", ""))

    def variants(self, small: bool = False) -> dict[str | None, Experiment]:
        """Every point of the experiment by name; one without a name if there is only one."""
        base = {k: v for k, v in self.table.items() if k not in ("small", "variants")}
        if small:
            if "small" not in self.table:
                raise RememberingError(
                    f"{self.path} has no [small] settings; run it without --small"
                )
            base = _merged(base, self.table["small"])
        variants = _merged({}, self.table.get("variants", {}))
        if not variants:
            return {None: schema.read(Experiment, base, str(self.path))}
        return {
            name: schema.read(Experiment, _merged(base, change), f"{self.path} ({name})")
            for name, change in variants.items()
        }


def names() -> list[str]:
    """Names of the experiments that come with the library."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def find(name: str) -> ExperimentFile:
    """An experiment by name, or by the path of a TOML file."""
    path = Path(name)
    if path.suffix != ".toml":
        path = _FOLDER / f"{name}.toml"
        if name not in names():
            close = difflib.get_close_matches(name, names(), n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(names())}"
            raise RememberingError(f"there is no experiment '{name}'; {hint}")
    try:
        return ExperimentFile(path.stem, path, tomllib.loads(path.read_text()))
    except OSError as error:
        raise RememberingError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:  # TOML's own, wrong UTF-8, numbers without end
        raise RememberingError(f"{path} is no valid TOML: {error}") from error


def with_seed(experiment: Experiment, seed: int) -> Experiment:
    """The same with another seed."""
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
