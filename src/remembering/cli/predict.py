"""`remember predict`: classify image files; print a table, JSON or CSV.

Files are read, answered and printed in chunks, so that memory does not grow with their number.
"""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from remembering.cli.parsing import Flag, parse
from remembering.cli.text import csv_cell
from remembering.errors import InvalidFileError, RememberingError
from remembering.runtime.text import printable

if TYPE_CHECKING:
    from remembering.data.found_images import FoundImages
    from remembering.model import RememberingTransformer
    from remembering.runtime.progress import Progress

DEFAULT_RATE = 0.05
"""False-alarm rate of explanations, if none is given."""
_Row = dict[str, Any]
_CHUNK = 1024  # files that are answered together, and rows of a table


@dataclass(frozen=True)
class Predict:
    """Classify images whose task is unknown.

    Attributes:
        model: Folder of the model.
        images: Image files, folders with images at any depth, or tables (CSV, Parquet).
        false_alarm_rate: Flag images that resemble no learned task as unknown. The rate is the
            share of known images that may be flagged by mistake, such as 0.05.
        top_k: Print the k most probable labels.
        together: Route the images of a folder together: they are known to belong to one task.
            Folders are answered one after the other.
        explain: Explain each answer in words: candidate classes and tasks, and the p-value.
        strict: Stop at an image that cannot be read, instead of leaving it out.
        batch_size: Images that are answered at a time; affects speed and memory only.
        device: Where to run, such as cpu or cuda:1. If None, a GPU if there is one.
        json: Print JSON. File names and labels are exact; tables and CSV escape control characters.
        csv: Print CSV.
        backbone: Where the backbone of the model is now, if it was moved.
    """

    model: tyro.conf.Positional[Path]
    images: tyro.conf.Positional[tuple[Path, ...]]
    false_alarm_rate: float | None = None
    top_k: int = 1
    together: Flag = False
    explain: Flag = False
    strict: Flag = False
    batch_size: int = 64
    device: str | None = None
    json: Flag = False
    csv: Flag = False
    backbone: str | None = None


def main(arguments: list[str]) -> int:
    """Run `remember predict`; the exit code is 1 if a file named by the user cannot be read."""
    options = parse(Predict, arguments, "predict")
    if options.json and options.csv:
        raise RememberingError("--json and --csv exclude each other; choose one")
    if options.top_k < 1:
        raise RememberingError(f"--top-k {options.top_k} must be at least 1")
    if options.batch_size < 1:
        raise RememberingError(f"--batch-size {options.batch_size} must be at least 1")

    from remembering.data.found_images import find_images
    from remembering.model import RememberingTransformer

    found = find_images(options.images)
    model = RememberingTransformer.load(
        options.model, backbone=options.backbone, device=options.device
    )
    unreadable: list[str] = []
    show = (
        _print_json
        if options.json
        else _print_csv
        if options.csv
        else _print_explanations
        if options.explain
        else _print_tables
    )
    if not show(_answers(model, found, options, unreadable)):
        raise RememberingError("none of the images can be read")
    return 1 if {*unreadable} & {*map(str, options.images)} else 0


def _answers(
    model: RememberingTransformer, found: FoundImages, options: Predict, unreadable: list[str]
) -> Iterator[_Row]:
    """Answer images chunk by chunk; those that cannot be read are reported and collected."""
    from remembering.runtime.bars import ProgressBars
    from remembering.runtime.progress import SILENT

    progress = ProgressBars()
    # No bar may be on the terminal while answers are printed there.
    overall = SILENT if sys.stdout.isatty() else progress
    with overall.track("all images", len(found.names)) as step:
        for chunk in _folders(found) if options.together else _chunks(found):
            try:
                yield from _rows(model, chunk, options, progress)
            except InvalidFileError:
                rest = chunk.only_readable(strict=options.strict)
                unreadable += rest.unreadable
                if rest.names:
                    yield from _rows(model, rest, options, progress)
            step(len(chunk.names))


def _chunks(found: FoundImages) -> Iterator[FoundImages]:
    import torch

    return (found.take(part) for part in torch.arange(len(found.names)).split(_CHUNK))


def _folders(found: FoundImages) -> Iterator[FoundImages]:
    import torch

    folders: dict[str, list[int]] = {}
    for i, folder in enumerate(found.groups):
        folders.setdefault(folder, []).append(i)
    return (found.take(torch.tensor(rows)) for rows in folders.values())


def _rows(
    model: RememberingTransformer, found: FoundImages, options: Predict, progress: Progress
) -> Iterator[_Row]:
    """Answer images together."""
    rate = options.false_alarm_rate
    prediction = model.predict(
        found.images,
        groups=found.groups if options.together else None,
        false_alarm_rate=DEFAULT_RATE if rate is None and options.explain else rate,
        neighbors=3 if options.explain else 0,
        batch_size=options.batch_size,
        progress=progress,
    )
    column = {task.name: i for i, task in enumerate(model.tasks)}
    for i, (name, best) in enumerate(zip(found.names, prediction.top(options.top_k), strict=True)):
        label, probability = best[0]
        task = prediction.tasks[i]
        row: _Row = {
            "file": name,
            "label": label,
            "probability": round(probability, 6),
            "task": task,
            "adapter": int(prediction.adapters[i]),
            "score": float(prediction.scores[i, column[task]]),
        }
        if prediction.novelty is not None and prediction.unknown is not None:
            row["p_value"] = float(prediction.novelty[i])
            row["unknown"] = bool(prediction.unknown[i])
        if options.explain:
            row["explanation"] = prediction.explain(i, max(options.top_k, 3))
        if options.top_k > 1:
            row["top"] = [{"label": other, "probability": round(p, 6)} for other, p in best]
        yield row


def _print_json(rows: Iterable[_Row]) -> int:
    """Print an array with one line per row; return the number of rows."""
    count = 0
    for count, row in enumerate(rows, start=1):
        print("[" if count == 1 else ",", json.dumps(row), sep="\n ", end="")
    print("\n]" if count else "[]")
    return count


def _print_explanations(rows: Iterable[_Row]) -> int:
    """Print each answer in words; return the number of rows."""
    count = 0
    for row in rows:
        lines = [row["file"], *row["explanation"].splitlines()]
        print("\n  ".join(map(printable, lines)))
        count += 1
    return count


def _print_csv(rows: Iterable[_Row]) -> int:
    """Print one column per field; the second most probable label is in `label_2`, and so on."""
    writer: csv.DictWriter[str] | None = None
    count = 0
    for row in rows:
        cells = {name: csv_cell(value) for name, value in row.items() if name != "top"}
        for rank, entry in enumerate(row.get("top", [])[1:], start=2):
            cells |= {f"{name}_{rank}": csv_cell(value) for name, value in entry.items()}
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(cells), lineterminator="\n")
            writer.writeheader()
        writer.writerow(cells)
        count += 1
    return count


def _print_tables(rows: Iterable[_Row]) -> int:
    """Print a table, or several if there are many rows; return the number of rows."""
    rows, count = iter(rows), 0
    while part := list(itertools.islice(rows, _CHUNK)):
        _print_table(part)
        count += len(part)
    return count


def _print_table(rows: Sequence[_Row]) -> None:
    from remembering.cli.terminal import cell, listing, stdout_console

    def show_others(row: Mapping[str, Any]) -> str:
        return ", ".join(f"{e['label']} {e['probability']:.3f}" for e in row["top"][1:])

    columns = {
        "image": lambda row: row["file"],
        "label": lambda row: row["label"],
        "probability": lambda row: f"{row['probability']:.3f}",
        "next labels": show_others,
        "task": lambda row: row["task"],
        "adapter": lambda row: row["adapter"],
        "p-value": lambda row: f"{row['p_value']:.3f}",
        "unknown": lambda row: "unknown" if row["unknown"] else "",
    }
    if "top" not in rows[0]:
        del columns["next labels"]
    if "p_value" not in rows[0]:
        del columns["p-value"], columns["unknown"]
    table = listing([*columns], numeric=("probability", "adapter", "p-value"))
    for row in rows:
        table.add_row(*(cell(text(row)) for text in columns.values()))
    stdout_console().print(table)
