"""`remember consolidate`: retrain shared adapters on the replay images of all their tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from remembering.cli.parsing import Flag, parse
from remembering.cli.text import counted
from remembering.runtime.text import printable


@dataclass(frozen=True)
class Consolidate:
    """Retrain shared adapters on the replay images of all their tasks.

    An adapter is replaced unless the new one is worse on held-out images. The model must have
    been taught with replay images (remember learn --memory).

    Attributes:
        model: Folder of the model.
        backbone: Where the backbone of the model is now, if it was moved.
        resume: Continue a consolidation that was interrupted.
    """

    model: tyro.conf.Positional[Path]
    backbone: str | None = None
    resume: Flag = False


def main(arguments: list[str]) -> int:
    """Run `remember consolidate` and return its exit code."""
    options = parse(Consolidate, arguments, "consolidate")

    from remembering.learning.checkpoint import NAME, Checkpoint
    from remembering.model import RememberingTransformer
    from remembering.runtime.bars import ProgressBars
    from remembering.runtime.lock import only_writer

    with only_writer(options.model):
        checkpoint = Checkpoint(options.model / NAME, resume=options.resume)
        model = RememberingTransformer.load(options.model, backbone=options.backbone)
        reports = model.consolidate(progress=ProgressBars(), checkpoint=checkpoint)
        model.save(options.model)
        checkpoint.remove()
    for report in reports:
        tasks = ", ".join(f"'{task.name}'" for task in model.state.served_by(report.adapter))
        outcome = "replaced" if report.accepted else "kept, because the new one is worse"
        print(
            printable(
                f"adapter {report.adapter} ({tasks}): {outcome}; accuracy on held-out replay "
                f"images {report.before:.1%} before, {report.after:.1%} after, "
                f"{counted(report.images, 'replay image')}"
            )
        )
    return 0
