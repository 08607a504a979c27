"""`remember forget`: remove a task or a class from a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from remembering.cli.parsing import parse, parse_label
from remembering.cli.text import counted
from remembering.runtime.text import printable

if TYPE_CHECKING:
    from remembering.learning.forget import Forgotten


@dataclass(frozen=True)
class Forget:
    """Remove a task or a class from a model.

    The statistics and replay images of the task are removed, and its adapter unless other tasks
    share it. With --label, only a class of the task is removed.

    Attributes:
        model: Folder of the model.
        task: Name of the task.
        label: The class to remove instead of the task.
        backbone: Where the backbone of the model is now, if it was moved.
    """

    model: tyro.conf.Positional[Path]
    task: tyro.conf.Positional[str]
    label: str | None = None
    backbone: str | None = None


def main(arguments: list[str]) -> int:
    """Run `remember forget` and return its exit code."""
    options = parse(Forget, arguments, "forget")

    from remembering.model import RememberingTransformer
    from remembering.runtime.lock import only_writer

    with only_writer(options.model):
        model = RememberingTransformer.load(options.model, backbone=options.backbone)
        if options.label is None:
            text = _text(model.forget(options.task))
        else:
            model.remove_class(options.task, parse_label(options.label, model.classes))
            text = f"removed class '{options.label}' from '{options.task}'"
        model.save(options.model)
    print(printable(text))
    return 0


def _text(forgotten: Forgotten) -> str:
    adapter = f"adapter {forgotten.task.adapter}"
    removed = [
        f"its generative model{'' if forgotten.exact else ' (shared statistics were scaled down)'}"
    ]
    if forgotten.replay_images:
        removed.append(counted(forgotten.replay_images, "replay image"))
    if not forgotten.shared_with:
        return f"forgot '{forgotten.task.name}': removed {', '.join(removed)} and {adapter}"
    others = ", ".join(f"'{name}'" for name in forgotten.shared_with)
    influence = {
        None: "it was not trained on the task",
        "consolidate": (
            "it was also trained on replay images of the task; remember consolidate retrains it "
            "without them"
        ),
        "relearn": (
            f"it was trained on the task; to remove that influence, forget {others} as well and "
            "learn again"
        ),
    }[forgotten.remedy]
    return (
        f"forgot '{forgotten.task.name}': removed {' and '.join(removed)}; {adapter} remains, "
        f"because it also serves {others}; {influence}"
    )
