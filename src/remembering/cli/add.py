"""`remember add`: add images and classes to a task that a model has learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from remembering.cli.parsing import Flag, parse, parse_label
from remembering.cli.text import counted
from remembering.runtime.text import printable


@dataclass(frozen=True)
class Add:
    """Add images and classes to a task, without training.

    Images of a known class are added to it; a folder with another name becomes a new class.

    Attributes:
        model: Folder of the model.
        task: Name of the task.
        folder: Folder with one folder of images per class.
        strict: Stop at an image that cannot be read, instead of leaving it out.
        backbone: Where the backbone of the model is now, if it was moved.
    """

    model: tyro.conf.Positional[Path]
    task: tyro.conf.Positional[str]
    folder: tyro.conf.Positional[Path]
    strict: Flag = False
    backbone: str | None = None


def main(arguments: list[str]) -> int:
    """Run `remember add` and return its exit code."""
    options = parse(Add, arguments, "add")

    from remembering.data.images import subset
    from remembering.data.task import Task
    from remembering.model import RememberingTransformer
    from remembering.runtime.lock import only_writer

    images = Task.from_folder(options.folder).only_readable(strict=options.strict)
    with only_writer(options.model):
        model = RememberingTransformer.load(options.model, backbone=options.backbone)
        known = {str(label) for label in model.state.task(options.task).classes}
        for position, name in enumerate(images.classes):
            rows = (images.targets == position).nonzero().flatten()
            own, label = subset(images.images, rows), parse_label(str(name), model.classes)
            if name in known:
                model.add_images(options.task, own, [label] * len(rows))
            else:
                model.add_class(options.task, label, own)
        model.save(options.model)
    new = ", ".join(f"'{label}'" for label in images.classes if label not in known)
    added = f"added {counted(len(images), 'image')} to '{options.task}'"
    print(printable(f"{added}; new classes: {new}" if new else added))
    return 0
