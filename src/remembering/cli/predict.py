"""`remember predict`: classify image files; print a table, JSON or CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from remembering.cli.parsing import Flag, parse
from remembering.cli.text import csv_cell, printable
from remembering.errors import RememberingError

if TYPE_CHECKING:
    from remembering.inference.prediction import Prediction
    from remembering.model import RememberingTransformer

_Row = dict[str, Any]


@dataclass(frozen=True)
class Predict:
    """Classify images whose task is unknown.

    Attributes:
        model: Folder of the model.
        images: Image files, or folders of image files.
        false_alarm_rate: Flag images that resemble no learned task as unknown. The rate is the
            share of known images that may be flagged by mistake, such as 0.05.
        top_k: Print the k most probable labels.
        together: Route the images of a folder together: they are known to belong to one task.
        json: Print JSON. File names and labels are exact; tables and CSV escape control characters.
        csv: Print CSV.
        backbone: Where the backbone of the model is now, if it was moved.
    """

    model: tyro.conf.Positional[Path]
    images: tyro.conf.Positional[tuple[Path, ...]]
    false_alarm_rate: float | None = None
    top_k: int = 1
    together: Flag = False
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
    files = _find(options.images)

    from remembering.cli.terminal import TerminalProgress
    from remembering.model import RememberingTransformer

    model = RememberingTransformer.load(options.model, backbone=options.backbone)
    readable, unreadable = _check(files)
    for reason in unreadable.values():
        print(f"skipped: {printable(reason)}", file=sys.stderr)
    rows: list[_Row] = []
    if readable:
        prediction = model.predict(
            readable,
            groups=[str(path.parent) for path in readable] if options.together else None,
            false_alarm_rate=options.false_alarm_rate,
            progress=TerminalProgress(),
        )
        rows = _rows(model, readable, prediction, options.top_k)
    _print(rows, options)
    if not rows:
        raise RememberingError("none of the images can be read")
    return 1 if any(path in unreadable for path in options.images) else 0


def _find(paths: Sequence[Path]) -> list[Path]:
    """Return the files to classify: those given, and the images in the folders given."""
    from remembering.data.decoding import image_files

    for path in paths:
        if not path.exists():
            raise RememberingError(f"{path} does not exist; give image files or folders of them")
    files = [file for path in paths for file in (image_files(path) if path.is_dir() else [path])]
    if not paths:
        raise RememberingError("no images are given; name image files or folders of them")
    if not files:
        raise RememberingError(f"there are no images in {', '.join(map(str, paths))}")
    return files


def _check(files: Sequence[Path]) -> tuple[list[Path], dict[Path, str]]:
    """Separate the files that can be decoded from those that cannot, with the reasons."""
    from remembering.data.decoding import read_image

    readable: list[Path] = []
    unreadable: dict[Path, str] = {}
    for path in files:
        try:
            read_image(path)
            readable.append(path)
        except RememberingError as error:
            unreadable[path] = str(error)
    return readable, unreadable


def _rows(
    model: RememberingTransformer, files: Sequence[Path], prediction: Prediction, top_k: int
) -> list[_Row]:
    column = {task.name: i for i, task in enumerate(model.tasks)}
    rows = []
    for i, (file, best) in enumerate(zip(files, prediction.top(top_k), strict=True)):
        label, probability = best[0]
        task = prediction.tasks[i]
        row: _Row = {
            "file": str(file),
            "label": label,
            "probability": round(probability, 6),
            "task": task,
            "adapter": int(prediction.adapters[i]),
            "score": float(prediction.scores[i, column[task]]),
        }
        if prediction.novelty is not None and prediction.unknown is not None:
            row["p_value"] = float(prediction.novelty[i])
            row["unknown"] = bool(prediction.unknown[i])
        if top_k > 1:
            row["top"] = [{"label": name, "probability": round(p, 6)} for name, p in best]
        rows.append(row)
    return rows


def _print(rows: Sequence[_Row], options: Predict) -> None:
    if options.json:
        print(json.dumps(rows, indent=1))
    elif options.csv:
        _print_csv(rows)
    elif rows:
        _print_table(rows)


def _print_csv(rows: Sequence[_Row]) -> None:
    """Print one column per field; the second most probable label is in `label_2`, and so on."""
    flat = []
    for row in rows:
        cells = {name: csv_cell(value) for name, value in row.items() if name != "top"}
        for rank, entry in enumerate(row.get("top", [])[1:], start=2):
            cells |= {f"{name}_{rank}": csv_cell(value) for name, value in entry.items()}
        flat.append(cells)
    if flat:
        writer = csv.DictWriter(sys.stdout, list(flat[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)


def _print_table(rows: Sequence[_Row]) -> None:
    from rich.table import Table

    from remembering.cli.terminal import cell, stdout_console

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
    table = Table(*columns)
    for row in rows:
        table.add_row(*(cell(text(row)) for text in columns.values()))
    stdout_console().print(table)
