"""`remember observe`: learn from a stream of labelled images without task boundaries."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from remembering.cli.parsing import Flag, parse
from remembering.cli.text import counted
from remembering.errors import RememberingError
from remembering.runtime.text import printable
from remembering.storage.manifest import is_model

if TYPE_CHECKING:
    from remembering.data.task import Task
    from remembering.model import RememberingTransformer
    from remembering.runtime.progress import Progress
    from remembering.state import TaskRecord


@dataclass(frozen=True)
class Observe:
    """Learn from a stream of labelled images without task boundaries.

    Images that resemble learned tasks are recognised; new ones are learned as tasks. The rows of a
    table are observed in order, and so are the tasks of a folder, whose classes take turns.

    Attributes:
        model: Folder of the model. It is created if it does not exist.
        data: Table of images (CSV or Parquet), or folder of class folders or of tasks.
        batch_size: Images per batch. New images of a batch may become one task.
        refine: Update the generative models of learned tasks by recognised images.
        strict: Stop at an image that cannot be read, instead of leaving it out.
        backbone: For a new model: a folder in hub layout, a hub name, or bundled (for small grey
            images). If None, it is selected by the images. For an existing model: where its
            backbone is now, if it was moved.
        image_size: For a new model: input size in pixels. If None, that of the checkpoint.
    """

    model: tyro.conf.Positional[Path]
    data: tyro.conf.Positional[Path]
    batch_size: int = 64
    refine: Flag = False
    strict: Flag = False
    backbone: str | None = None
    image_size: int | None = None


def main(arguments: list[str]) -> int:
    """Run `remember observe` and return its exit code."""
    options = parse(Observe, arguments, "observe")
    if options.batch_size < 1:
        raise RememberingError(f"--batch-size {options.batch_size} must be at least 1")

    from remembering.cli.creating import create
    from remembering.data.paths import load_stream
    from remembering.model import RememberingTransformer
    from remembering.runtime.bars import ProgressBars
    from remembering.runtime.lock import only_writer

    progress = ProgressBars()
    stream = load_stream(options.data, strict=options.strict, progress=progress)
    with only_writer(options.model):
        if not is_model(options.model):
            model = create(options.model, options.backbone, options.image_size, stream.images)
        elif options.image_size is None:
            model = RememberingTransformer.load(options.model, backbone=options.backbone)
        else:
            raise RememberingError(f"{options.model} exists and keeps its size; omit --image-size")
        model, recognised = _observe(model, stream, options, progress)
    for name, count in recognised.items():
        print(f"recognised {counted(count, 'image')} of '{printable(name)}'")
    print(f"{printable(options.model)} now has {counted(len(model.tasks), 'task')}")
    return 0


def _observe(
    model: RememberingTransformer, stream: Task, options: Observe, progress: Progress
) -> tuple[RememberingTransformer, Counter[str]]:
    """Observe all batches and learn what is pending at the end; save whenever a task is learned.

    Returns:
        The model, and the number of recognised images by task.
    """
    import torch

    from remembering.data.images import subset

    recognised: Counter[str] = Counter()
    with progress.track("observing", len(stream)) as step:
        for index in torch.arange(len(stream)).split(options.batch_size):
            labels = [stream.labels[i] for i in index.tolist()]
            batch = subset(stream.images, index)
            observed = model.observe(batch, labels, refine=options.refine, progress=progress)
            recognised.update(observed.recognised)
            model = _save(model, options.model, observed.learned)
            step(len(index))
    try:
        pending = model.flush(progress=progress)
    except RememberingError as error:  # for example a label with a single image
        logging.getLogger("remembering").warning("left out: %s", error)
        pending = model.flush(discard=True, progress=progress)
    model = _save(model, options.model, pending)
    if options.refine:
        model.save(options.model)
    return model, recognised


def _save(
    model: RememberingTransformer, folder: Path, learned: Sequence[TaskRecord]
) -> RememberingTransformer:
    """Save what was learned, without the images that are still pending; return the model."""
    if learned:
        pending = model.state.pending
        model = model.with_state(replace(model.state, pending=()))
        model.save(folder)
        model = model.with_state(replace(model.state, pending=pending))
    for record in learned:
        print(
            f"learned '{printable(record.name)}': {counted(record.images, 'image')} of "
            f"{printable(', '.join(map(str, record.classes)))}"
        )
    return model
