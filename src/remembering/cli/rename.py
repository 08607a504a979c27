"""`remember rename`: rename a task or a class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from remembering.cli.parsing import parse, parse_label
from remembering.runtime.text import printable


@dataclass(frozen=True)
class Rename:
    """Rename a task or a class.

    With --label, a class of the task is renamed. Answers differ in the name only.

    Attributes:
        model: Folder of the model.
        task: Name of the task.
        name: The new name.
        label: The class to rename instead of the task.
        backbone: Where the backbone of the model is now, if it was moved.
    """

    model: tyro.conf.Positional[Path]
    task: tyro.conf.Positional[str]
    name: tyro.conf.Positional[str]
    label: str | None = None
    backbone: str | None = None


def main(arguments: list[str]) -> int:
    """Run `remember rename` and return its exit code."""
    options = parse(Rename, arguments, "rename")

    from remembering.model import RememberingTransformer
    from remembering.runtime.lock import only_writer

    with only_writer(options.model):
        model = RememberingTransformer.load(options.model, backbone=options.backbone)
        if options.label is None:
            model.rename_task(options.task, options.name)
        else:
            model.state.task(options.task)
            old, new = (parse_label(text, model.classes) for text in (options.label, options.name))
            model.rename_class(options.task, old, new)
        model.save(options.model)
    old_name = options.task if options.label is None else options.label
    print(printable(f"renamed '{old_name}' to '{options.name}'"))
    return 0
