"""`remember predict`: files in, a table, JSON or CSV out."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from remembering.cli.terminal import TerminalProgress
from remembering.data.decoding import image_files, read_image
from remembering.data.task import Label
from remembering.errors import RememberingError
from remembering.model import RememberingTransformer


@dataclass(frozen=True)
class Answer:
    """What is said of one file."""

    file: str
    label: Label
    probability: float
    task: str
    adapter: int
    error: float
    """Under the chosen task's generative model."""
    novelty: float | None = None
    """p-value that the image belongs to what was learned, if a rate was given."""
    unknown: bool | None = None
    """Whether it is at most the rate."""


@dataclass(frozen=True)
class Answers:
    """Answers, and the files that could not be read, with the reason."""

    answers: list[Answer]
    skipped: dict[Path, str]
    complete: bool
    """Whether every file that was named itself (not only its folder) was answered."""


def predict_files(
    model_dir: Path,
    paths: Sequence[Path],
    together: bool,
    backbone: str | None,
    unknown: float | None = None,
) -> Answers:
    """Answer image files; a folder's unreadable files are skipped and named."""
    named = [path for path in paths if not path.is_dir()]
    for path in named:
        if not path.exists():
            raise RememberingError(f"{path} does not exist; give image files or folders of them")
    files = [f for path in paths for f in (image_files(path) if path.is_dir() else [path])]
    if not files:
        raise RememberingError(f"there are no images in {', '.join(map(str, paths)) or 'nothing'}")
    model = RememberingTransformer.load(model_dir, backbone)
    readable, skipped = _readable(files)
    if not readable:
        return Answers([], skipped, complete=False)
    groups = [str(path.parent) for path in readable] if together else None
    said = model.predict(readable, groups, TerminalProgress(), unknown)
    nothing = [None] * len(readable)
    column = {record.name: i for i, record in enumerate(model.tasks)}
    answers = [
        Answer(
            str(path),
            label,
            round(probability, 6),
            task,
            adapter,
            errors[column[task]],
            novelty,
            flagged,
        )
        for path, label, probability, task, adapter, errors, novelty, flagged in zip(
            readable,
            said.labels,
            said.confidence.tolist(),
            said.tasks,
            said.adapters.tolist(),
            said.errors.tolist(),
            said.novelty.tolist() if said.novelty is not None else nothing,
            said.unknown.tolist() if said.unknown is not None else nothing,
            strict=True,
        )
    ]
    return Answers(answers, skipped, not any(path in skipped for path in named))


def print_answers(result: Answers, form: str) -> int:
    """Print what was answered and name what was skipped; the exit code says if all was well."""
    if form == "json":
        print(json.dumps([asdict(answer) for answer in result.answers], indent=1))
    elif form == "csv":
        writer = csv.DictWriter(sys.stdout, list(Answer.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(asdict(answer) for answer in result.answers)
    elif result.answers:
        _print_table(result.answers)
    for reason in result.skipped.values():
        print(f"skipped: {reason}", file=sys.stderr)
    if not result.answers:
        raise RememberingError("no image could be read")
    return 0 if result.complete else 1


def _readable(files: Sequence[Path]) -> tuple[list[Path], dict[Path, str]]:
    readable, skipped = [], {}
    for path in files:
        try:
            read_image(path)
            readable.append(path)
        except RememberingError as error:
            skipped[path] = str(error)
    return readable, skipped


def _print_table(answers: Sequence[Answer]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    judged = answers[0].unknown is not None
    table = Table("image", "label", "probability", "task", "adapter")
    if judged:
        table.add_column("seen before? (p-value)")
    for answer in answers:
        cells = (answer.file, str(answer.label), f"{answer.probability:.3f}", answer.task)
        verdict = (
            f"{'unknown' if answer.unknown else 'yes'} ({answer.novelty:.3f})" if judged else ""
        )
        last = [verdict] if judged else []
        table.add_row(*(Text(cell) for cell in cells), str(answer.adapter), *last)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
