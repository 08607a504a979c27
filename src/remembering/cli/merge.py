"""`remember merge`: add the tasks of another model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from remembering.cli.parsing import parse
from remembering.cli.text import counted
from remembering.runtime.text import printable


@dataclass(frozen=True)
class Merge:
    """Add the tasks of another model on the same backbone.

    Nothing is trained: each task keeps its adapter.

    Attributes:
        model: Folder of the model that receives the tasks.
        other: Folder of the other model, which is not changed. It must have the same settings.
        backbone: Where the backbone of the models is now, if it was moved.
    """

    model: tyro.conf.Positional[Path]
    other: tyro.conf.Positional[Path]
    backbone: str | None = None


def main(arguments: list[str]) -> int:
    """Run `remember merge` and return its exit code."""
    options = parse(Merge, arguments, "merge")

    from remembering.model import RememberingTransformer
    from remembering.runtime.lock import only_writer

    with only_writer(options.model):
        model = RememberingTransformer.load(options.model, backbone=options.backbone)
        other = RememberingTransformer.load(options.other, backbone=options.backbone)
        model.merge(other)
        model.save(options.model)
    print(
        printable(
            f"added {counted(len(other.tasks), 'task')} of {options.other}; {options.model} now "
            f"has {counted(len(model.tasks), 'task')} and "
            f"{counted(len(model.state.adapters), 'adapter')}"
        )
    )
    return 0
