"""`remember forget`: remove a task from a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from remembering.cli.parsing import parse
from remembering.cli.text import counted, printable


@dataclass(frozen=True)
class Forget:
    """Remove a task from a model.

    Its generative model and replay images are removed, and its adapter unless other tasks share it.

    Attributes:
        model: Folder of the model.
        task: Name of the task.
        backbone: Where the backbone of the model is now, if it was moved.
    """

    model: tyro.conf.Positional[Path]
    task: tyro.conf.Positional[str]
    backbone: str | None = None


def main(arguments: list[str]) -> int:
    """Run `remember forget` and return its exit code."""
    options = parse(Forget, arguments, "forget")

    from remembering.model import RememberingTransformer
    from remembering.runtime.lock import only_writer

    with only_writer(options.model):
        model = RememberingTransformer.load(options.model, backbone=options.backbone)
        forgotten = model.forget(options.task)
        model.save(options.model)
    adapter = f"adapter {forgotten.task.adapter}"
    if forgotten.shared_with:
        others = ", ".join(f"'{name}'" for name in forgotten.shared_with)
        adapter = f"; {adapter} remains, because it also serves {others}"
    else:
        adapter = f" and {adapter}"
    print(
        printable(
            f"forgot '{forgotten.task.name}': removed its generative model, "
            f"{counted(forgotten.replay_images, 'replay image')}{adapter}"
        )
    )
    return 0
