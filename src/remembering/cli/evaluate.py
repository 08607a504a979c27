"""`remember evaluate`: measure how good a model is on labelled images."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from remembering import schema
from remembering.cli.parsing import Flag, parse
from remembering.errors import RememberingError
from remembering.runtime.text import printable

if TYPE_CHECKING:
    from remembering.report.table import Table


@dataclass(frozen=True)
class Evaluate:
    """Measure how good a model is on labelled images.

    Each image is answered alone. Use images that were not learned: accuracy on training images is
    too high.

    Attributes:
        model: Folder of the model.
        data: Folder with one folder of images per class, a folder of such folders, or a table (CSV,
            Parquet).
        unknown: Images of none of the learned classes: measure how well they are detected.
        train: Training images, in a folder or table as above: compare with a linear probe, logistic
            regression on the features of the same frozen backbone.
        false_alarm_rate: Requested share of known images that are flagged as unknown.
        json: Print JSON.
        html: Write a page with plots and the worst mistakes to this file.
        strict: Stop at an image that cannot be read, instead of leaving it out.
        device: Where to run, such as cpu or cuda:1. If None, a GPU if there is one.
        backbone: Where the backbone of the model is now, if it was moved.
    """

    model: tyro.conf.Positional[Path]
    data: tyro.conf.Positional[Path]
    unknown: Path | None = None
    train: Path | None = None
    false_alarm_rate: float = 0.05
    json: Flag = False
    html: Path | None = None
    strict: Flag = False
    device: str | None = None
    backbone: str | None = None


def main(arguments: list[str]) -> int:
    """Run `remember evaluate` and return its exit code."""
    options = parse(Evaluate, arguments, "evaluate")
    if options.html:
        _check_page(options.html)

    from remembering.data.found_images import load_images
    from remembering.data.images import joined
    from remembering.data.paths import load_tasks
    from remembering.model import RememberingTransformer
    from remembering.runtime.bars import ProgressBars

    progress = ProgressBars()
    strict = options.strict
    tasks = load_tasks(options.data, strict=strict, progress=progress)
    train = options.train and load_tasks(options.train, strict=strict, progress=progress)
    unknown = options.unknown and load_images([options.unknown], strict=strict, progress=progress)
    model = RememberingTransformer.load(
        options.model, backbone=options.backbone, device=options.device
    )
    evaluation = model.evaluate(
        tasks,
        unknown=unknown.images if unknown else None,
        train=train or None,
        false_alarm_rate=options.false_alarm_rate,
        progress=progress,
    )
    if options.json:
        print(json.dumps(schema.write(evaluation), indent=1))
    else:
        from remembering.report.evaluation import evaluation_tables, mistakes_table

        tables = evaluation_tables(evaluation)
        for table in [*tables, mistakes_table(evaluation)] if evaluation.mistakes else tables:
            _show(table)
    if options.html:
        from remembering.report.evaluation import write_evaluation

        title = options.model.resolve().name
        images = joined([task.images for task in tasks])
        write_evaluation(evaluation, images, options.html, title)
        if not options.json:
            print(f"written to {printable(options.html)}")
    return 0


def _check_page(path: Path) -> None:
    """Raise if the page would replace something else, such as a file of a model."""
    from remembering.storage.manifest import is_model

    if path.exists() and path.suffix.lower() not in (".html", ".htm"):
        raise RememberingError(f"{path} exists and is no page; give a name such as page.html")
    if is_model(path.parent):
        raise RememberingError(f"{path.parent} is a model; write the page to another folder")


def _show(table: Table) -> None:
    from dataclasses import replace

    from remembering.cli.terminal import show

    rows = tuple(tuple(map(printable, row)) for row in table.rows)
    show(replace(table, rows=rows), "--json")
