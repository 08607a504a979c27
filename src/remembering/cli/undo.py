"""`remember undo`: make the state before the last save current again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from remembering.cli.parsing import parse
from remembering.runtime.text import printable


@dataclass(frozen=True)
class Undo:
    """Undo the last change of a model. Running it again restores the change.

    Attributes:
        model: Folder of the model.
        backbone: Where the backbone of the model is now, if it was moved.
    """

    model: tyro.conf.Positional[Path]
    backbone: str | None = None


def main(arguments: list[str]) -> int:
    """Run `remember undo` and return its exit code."""
    options = parse(Undo, arguments, "undo")

    from remembering.model import RememberingTransformer
    from remembering.runtime.lock import only_writer

    with only_writer(options.model):
        model = RememberingTransformer.load(options.model, backbone=options.backbone, previous=True)
        model.save(options.model)
    names = ", ".join(f"'{task.name}'" for task in model.tasks) or "none"
    print(
        printable(
            f"undid the last change of {options.model}; its tasks are {names}; remember undo "
            "again restores the change"
        )
    )
    return 0
