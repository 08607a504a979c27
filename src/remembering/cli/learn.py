"""`remember learn`: learn a task from a folder of class folders."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from remembering.cli.parsing import Flag, parse
from remembering.cli.text import command_line, counted, printable
from remembering.config import Settings
from remembering.errors import RememberingError
from remembering.storage.manifest import Manifest, is_model, read_manifest

if TYPE_CHECKING:
    from remembering.data.task import Task
    from remembering.model import RememberingTransformer

_BASIC = ("name", "backbone", "resume", "epochs", "capacity")
# A model keeps its settings, except for those that only concern the training of one task.
_PER_TASK = ("epochs", "batch_size", "lr", "weight_decay")


@dataclass(frozen=True)
class Learn:
    """Learn one more task from a folder of class folders.

    Attributes:
        model: Folder of the model. It is created if it does not exist.
        folder: Folder with one folder of images per class.
        name: Name of the task. If None, the name of the folder.
        backbone: For a new model: bundled (the default), a folder in hub layout, or a hub name. For
            an existing model: where its backbone is now, if it was moved.
        image_size: For a new model: input size in pixels. If None, that of the checkpoint.
        resume: Resume this task where an interrupted process stopped.
        save_steps: Save progress every so many training steps. It is always saved after each epoch.
    """

    model: tyro.conf.Positional[Path]
    folder: tyro.conf.Positional[Path]
    name: str | None = None
    backbone: str | None = None
    image_size: int | None = None
    resume: Flag = False
    save_steps: int = 0
    settings: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)


def main(arguments: list[str]) -> int:
    """Run `remember learn` and return its exit code."""
    options = parse(Learn, arguments, "learn", basic=_BASIC)

    from remembering.cli.terminal import TerminalProgress
    from remembering.data.task import Task
    from remembering.learning.checkpoint import NAME, Checkpoint
    from remembering.runtime.lock import only_writer

    task = Task.from_folder(options.folder, options.name)
    with only_writer(options.model):
        checkpoint = Checkpoint(options.model / NAME, options.save_steps, options.resume)
        if options.resume and _is_saved(options.model, task):
            checkpoint.remove()
            print(f"'{printable(task.name)}' is already learned; there is nothing to resume")
            return 0
        model = _open(options, arguments)
        try:
            record = model.learn(task, progress=TerminalProgress(), checkpoint=checkpoint)
            model.save(options.model)
        except KeyboardInterrupt:
            _explain_interruption(_is_saved(options.model, task), arguments)
            return 130
        checkpoint.remove()
    print(
        f"learned '{printable(record.name)}': {len(record.classes)} classes, {record.images} "
        f"images, adapter {record.adapter}; {printable(options.model)} now has "
        f"{counted(len(model.tasks), 'task')} and "
        f"{counted(len(model.state.adapters), 'adapter')}"
    )
    return 0


def _open(options: Learn, arguments: Sequence[str]) -> RememberingTransformer:
    """Load the model, or create it."""
    from remembering.model import RememberingTransformer
    from remembering.storage.layout import in_use

    if is_model(options.model):
        # Parse again: the settings of the model are the defaults of the options.
        manifest = read_manifest(options.model)
        default = Learn(
            model=tyro.MISSING,
            folder=tyro.MISSING,
            image_size=manifest.backbone.image_size,
            settings=manifest.settings,
        )
        options = parse(Learn, arguments, "learn", default=default)
        _check_unchanged(options, manifest)
        model = RememberingTransformer.load(options.model, backbone=options.backbone)
        return model.with_settings(options.settings)
    if in_use(options.model):
        raise RememberingError(
            f"{options.model} is not empty and contains no model; choose another folder"
        )
    return RememberingTransformer.from_backbone(
        options.backbone or "bundled", options.settings, image_size=options.image_size
    )


def _check_unchanged(options: Learn, manifest: Manifest) -> None:
    old = _fixed_settings(manifest.settings, manifest.backbone.image_size)
    new = _fixed_settings(options.settings, options.image_size)
    for name, value in old.items():
        if new[name] != value:
            raise RememberingError(
                f"the model was created with {name} = {value}, which cannot be changed; omit "
                f"--{name.replace('_', '-')}, or create a new model"
            )


def _fixed_settings(settings: Settings, image_size: int | None) -> dict[str, object]:
    """Return the settings that all tasks of a model share, by the names of their options."""
    return {
        "image_size": image_size,
        **{k: v for k, v in vars(settings).items() if k not in ("router", *_PER_TASK)},
        **{f"router.{k}": v for k, v in vars(settings.router).items()},
    }


def _is_saved(folder: Path, task: Task) -> bool:
    """Return whether the model already contains this task."""
    return is_model(folder) and any(
        (entry.name, entry.images, tuple(entry.classes)) == (task.name, len(task), task.classes)
        for entry in read_manifest(folder).tasks
    )


def _explain_interruption(saved: bool, arguments: Sequence[str]) -> None:
    if saved:
        print("interrupted; the task is learned and saved", file=sys.stderr)
        return
    again = arguments if "--resume" in arguments else [*arguments, "--resume"]
    print(
        f"interrupted; the model is unchanged. Resume with: {command_line('learn', again)}",
        file=sys.stderr,
    )
