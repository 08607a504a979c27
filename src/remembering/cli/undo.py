"""`remember undo`: make the state before the last save current again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from remembering.cli.parsing import parse
from remembering.cli.text import counted
from remembering.runtime.text import printable
from remembering.storage.manifest import TaskEntry, is_model, read_manifest


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
        before = read_manifest(options.model).tasks if is_model(options.model) else ()
        model = RememberingTransformer.load(options.model, backbone=options.backbone, previous=True)
        model.save(options.model)
    changes = _changes(before, read_manifest(options.model).tasks)
    print(
        printable(
            f"undid the last change of {options.model}: "
            f"{'; '.join(changes) or 'names, classes and images of its tasks are the same'}"
        )
    )
    print("remember undo again restores the change")
    return 0


def _changes(before: Sequence[TaskEntry], after: Sequence[TaskEntry]) -> list[str]:
    """Describe in words by what tasks differ."""
    old, new = ({task.number: task for task in tasks} for tasks in (before, after))
    changes = [f"'{task.name}' is gone" for n, task in old.items() if n not in new]
    changes += [f"'{task.name}' is back" for n, task in new.items() if n not in old]
    for was, task in ((old[n], new[n]) for n in old if n in new):
        name = f"'{task.name}'"
        if was.name != task.name:
            changes.append(f"'{was.name}' is {name} again")
        lost = [f"'{label}'" for label in was.classes if label not in task.classes]
        regained = [f"'{label}'" for label in task.classes if label not in was.classes]
        if lost and regained:
            changes.append(f"class {', '.join(lost)} of {name} is {', '.join(regained)} again")
        elif lost or regained:
            labels, state = (lost, "is gone from") if lost else (regained, "is back in")
            changes.append(f"class {', '.join(labels)} {state} {name}")
        if was.images != task.images:
            changes.append(f"{name} has {counted(task.images, 'image')} again")
    return changes
