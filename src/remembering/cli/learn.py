"""`remember learn`: learn tasks from folders of class folders or from a table."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from remembering.cli.parsing import Flag, parse
from remembering.cli.text import command_line, counted
from remembering.config import Settings
from remembering.errors import RememberingError
from remembering.runtime.text import duration, printable
from remembering.storage.manifest import Manifest, is_model, read_manifest

if TYPE_CHECKING:
    from remembering.data.images import ImageSequence
    from remembering.data.task import Task
    from remembering.learning.learned import Learned
    from remembering.model import RememberingTransformer
    from remembering.runtime.progress import Progress

_BASIC = ("name", "fast", "backbone", "image_size", "resume", "capacity")
# A model keeps its settings, except for those that only concern how further tasks are learned.
_PER_TASK = {
    *("epochs", "batch_size", "lr", "schedule", "weight_decay", "augment"),
    *("capacity", "memory", "consolidate_every", "alpha"),
    *("classifier.second_view", "fusion.start", "fusion.labels", "fusion.replay"),
}


@dataclass(frozen=True)
class Learn:
    """Learn one task after another from folders of class folders or a table.

    Attributes:
        model: Folder of the model. It is created if it does not exist.
        data: Folder with one folder of images per class; a folder of such folders, which are
            learned one after another; or a CSV or Parquet file with the columns path, label and
            perhaps task.
        name: Name of the task. If None, the name of the folder or table.
        fast: Do not train an adapter: tell classes apart by the features of the frozen backbone.
            Takes seconds, and costs little accuracy on photos like those of its pretraining.
        backbone: For a new model: a folder in hub layout, a hub name, or bundled (for small grey
            images). If None, it is selected by the images. For an existing model: where its
            backbone is now, if it was moved.
        strict: Stop at an image that cannot be read, instead of leaving it out.
        image_size: For a new model: input size in pixels. If None, that of the checkpoint.
        resume: Resume this task where an interrupted process stopped.
        save_steps: Save progress every so many training steps. It is always saved after each epoch.
        device: Where to run, such as cpu or cuda:1. If None, a GPU if there is one.
    """

    model: tyro.conf.Positional[Path]
    data: tyro.conf.Positional[Path]
    name: str | None = None
    fast: Flag = False
    backbone: str | None = None
    image_size: int | None = None
    strict: Flag = False
    resume: Flag = False
    save_steps: int = 0
    device: str | None = None
    settings: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)


def main(arguments: list[str]) -> int:
    """Run `remember learn` and return its exit code."""
    options = parse(Learn, arguments, "learn", basic=_BASIC)
    if options.fast and options.settings.epochs is not None:
        raise RememberingError("--fast does not train; omit --epochs")

    from remembering.learning.algorithm import check_new
    from remembering.learning.checkpoint import NAME, Checkpoint
    from remembering.runtime.bars import ProgressBars
    from remembering.runtime.lock import only_writer

    progress = ProgressBars()
    tasks = _load(options, progress)
    with only_writer(options.model):
        checkpoint = Checkpoint(options.model / NAME, options.save_steps, options.resume)
        if options.resume or len(tasks) > 1:
            for task in (task for task in tasks if _is_saved(options.model, task)):
                print(f"'{printable(task.name)}' is already learned")
            tasks = [task for task in tasks if not _is_saved(options.model, task)]
        if not tasks:
            checkpoint.remove()
            return 0
        model = _open(options, arguments, tasks[0].images)
        if options.fast and model.settings.classifier.kind == "head":
            raise RememberingError("--fast does not train, but the heads of this model must be")
        for task in tasks:
            check_new(model.state, task)  # before the first one is learned
        for task in tasks:
            kept = model.settings
            try:
                if options.fast:
                    model = model.with_settings(epochs=0)
                learned = model.learn(task, progress=progress, checkpoint=checkpoint)
                model = model.with_settings(kept)
                model.save(options.model)
            except KeyboardInterrupt:
                done = [task.name for task in tasks if _is_saved(options.model, task)]
                _explain_interruption(done, len(done) == len(tasks), arguments)
                return 130
            checkpoint.remove()
            _report(learned)
        print(
            f"{printable(options.model)} now has {counted(len(model.tasks), 'task')}, "
            f"{counted(len(model.classes), 'class')} and "
            f"{counted(len(model.state.adapters), 'adapter')}"
        )
    return 0


def _report(learned: Learned) -> None:
    """Print what was learned and how good it is; warn about what is doubtful."""
    from rich.text import Text

    from remembering.cli.terminal import stdout_console

    task, state = learned.task, learned.state
    others = len(state.served_by(task.adapter)) - 1
    shared = f", shared with {counted(others, 'other task')}" if others else ""
    lines = [
        f"{counted(len(task.classes), 'class')}, {counted(task.images, 'image')}, "
        f"{duration(learned.seconds)}, adapter {task.adapter}{shared}",
        learned.accuracy_text,
    ]
    head = Text(f"learned '{printable(task.name)}'", style="bold")
    body = Text(": " + "\n  ".join(map(printable, filter(None, lines))))
    stdout_console().print(head + body, soft_wrap=True)
    for warning in learned.warnings:
        logging.getLogger("remembering").warning("%s", warning)


def _load(options: Learn, progress: Progress) -> list[Task]:
    from remembering.data.paths import load_tasks
    from remembering.data.task import Task

    tasks = load_tasks(options.data, strict=options.strict, progress=progress)
    for task in tasks:
        task.check_learnable()  # before the backbone is loaded
    if options.name is None:
        return tasks
    if len(tasks) > 1:
        raise RememberingError(
            f"--name is for one task, but {options.data} has {len(tasks)}; omit it"
        )
    return [Task(options.name, tasks[0].images, tasks[0].labels)]


def _open(
    options: Learn, arguments: Sequence[str], images: ImageSequence
) -> RememberingTransformer:
    """Load the model, or create it."""
    from remembering.cli.creating import create
    from remembering.model import RememberingTransformer

    if is_model(options.model):
        # Parse again: the settings of the model are the defaults of the options.
        manifest = read_manifest(options.model)
        default = Learn(
            model=tyro.MISSING,
            data=tyro.MISSING,
            image_size=manifest.backbone.image_size,
            settings=manifest.settings,
        )
        options = parse(Learn, arguments, "learn", default=default)
        _check_unchanged(options, manifest)
        model = RememberingTransformer.load(
            options.model, backbone=options.backbone, device=options.device
        )
        return model.with_settings(options.settings)
    return create(
        options.model,
        options.backbone,
        options.image_size,
        images,
        options.settings,
        options.device,
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
    values: dict[str, object] = {"image_size": image_size, **vars(settings)}
    for group in ("router", "classifier", "fusion"):
        values |= {f"{group}.{k}": v for k, v in vars(values.pop(group)).items()}
    return {name: value for name, value in values.items() if name not in _PER_TASK}


def _is_saved(folder: Path, task: Task) -> bool:
    """Return whether the model already contains this task."""
    return is_model(folder) and any(
        (entry.name, entry.images, tuple(entry.classes)) == (task.name, len(task), task.classes)
        for entry in read_manifest(folder).tasks
    )


def _explain_interruption(learned: Sequence[str], complete: bool, arguments: Sequence[str]) -> None:
    if complete:
        print("interrupted; the task is learned and saved", file=sys.stderr)
        return
    names = ", ".join(f"'{printable(name)}'" for name in learned)
    kept = f"{names} learned and saved" if learned else "the model is unchanged"
    again = arguments if "--resume" in arguments else [*arguments, "--resume"]
    print(
        f"interrupted; {kept}. Resume with: {command_line('learn', again)}",
        file=sys.stderr,
    )
