"""From arguments to the options of a command: a dataclass whose fields are options, with tyro.

`--help` shows the options that most users need; `--help-all` shows all of them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import tyro

from remembering.errors import RememberingError

T = TypeVar("T")
Flag = tyro.conf.FlagCreatePairsOff[bool]  # no --no-flag; the default must be False
HELP_ALL = "--help-all"


def parse(
    options: type[T],
    arguments: Sequence[str],
    command: str,
    *,
    default: T | None = None,
    basic: Collection[str] | None = None,
) -> T:
    """Parse the arguments of a command; print the help and exit if they ask for it.

    Args:
        options: A dataclass. Its docstring contains the help texts, under Attributes.
        arguments: Arguments after the name of the command.
        command: Name of the command.
        default: Default values; those of the dataclass if None.
        basic: Names of the options that `--help` shows. If None, all.
    """
    description = inspect.cleandoc(str(options.__doc__)).partition("\n\nAttributes:")[0]
    shown: Any = options
    if HELP_ALL in arguments:
        arguments = ["--help"]
    elif basic is not None and not {"-h", "--help"}.isdisjoint(arguments):
        shown, default, arguments = _only(options, basic), None, ["--help"]
        description += f"\n\nUse {HELP_ALL} to show all options."
    config = [tyro.conf.PositionalMetavarFromFieldName]
    if default is None:  # otherwise "None" may be needed to unset a value
        config.append(tyro.conf.DisallowNone)
    parsed: T = tyro.cli(
        shown,
        args=arguments,
        prog=f"remember {command}",
        description=description,
        default=default,
        config=config,
    )
    return parsed


def parse_label(text: str, classes: Sequence[str | int]) -> str | int:
    """Convert text to the type of a model's labels.

    >>> parse_label("7", (1, 2)), parse_label("7", ("1", "2"))
    (7, '7')
    """
    if classes and isinstance(classes[0], int):
        try:
            return int(text)
        except ValueError as error:
            raise RememberingError(
                f"the labels of the model are whole numbers; '{text}' is none"
            ) from error
    return text


def parse_seeds(text: str) -> list[int]:
    """Parse seeds that are separated by commas.

    >>> parse_seeds("0,1,2")
    [0, 1, 2]
    """
    if not text:
        return []
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError as error:
        raise RememberingError(
            f"--seeds {text} is not a list of whole numbers, such as 0,1,2"
        ) from error
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise RememberingError(f"--seeds {text} contains a negative number or a number twice")
    return seeds


def unused_folder(folder: Path) -> Path:
    """Return the folder, or the first of folder-2, folder-3, ... that does not exist."""
    number, candidate = 2, folder
    while candidate.exists():
        number, candidate = number + 1, folder.with_name(f"{folder.name}-{number}")
    return candidate


def _only(options: Any, basic: Collection[str]) -> type:
    """Return a subclass of a dataclass of options whose help shows only the basic ones.

    Options of a nested dataclass are kept if they have no prefix, such as those of `Settings`.
    """
    hints = get_type_hints(options, include_extras=True)
    fields: list[tuple[str, Any, Any]] = []
    for item in dataclasses.fields(options):
        kind: Any = hints[item.name]
        view: Any
        if get_origin(kind) is Annotated and dataclasses.is_dataclass(kind.__origin__):
            nested: Any = _only(kind.__origin__, basic)
            view = Annotated[(nested, *kind.__metadata__)]
            fields.append((item.name, view, dataclasses.field(default_factory=nested)))
        elif item.name not in basic and not _required(item):
            view = Annotated[(kind, tyro.conf.Suppress)]
            same = dataclasses.field(default=item.default, default_factory=item.default_factory)
            fields.append((item.name, view, same))
    return dataclasses.make_dataclass(options.__name__, fields, bases=(options,), frozen=True)


def _required(item: dataclasses.Field[Any]) -> bool:
    return item.default is item.default_factory is dataclasses.MISSING
