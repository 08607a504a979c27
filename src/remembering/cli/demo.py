"""`remember demo`: learn ten digits in five tasks, classify single images, write a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remembering.cli.parsing import parse, unused_folder
from remembering.errors import RememberingError

if TYPE_CHECKING:
    from remembering.data.streams.stream import Stream
    from remembering.experiments.result import RunResult
    from remembering.model import RememberingTransformer
    from remembering.runtime.progress import Progress

EXPERIMENT = "digits-5"


@dataclass(frozen=True)
class Demo:
    """Learn scikit-learn's digits in five tasks and write a report.

    Attributes:
        out: Folder for the model, the results and the plots. If None, runs/demo.
    """

    out: Path | None = None


def main(arguments: list[str]) -> int:
    """Run `remember demo` and return its exit code."""
    options = parse(Demo, arguments, "demo")
    if options.out and options.out.exists() and any(options.out.iterdir()):
        raise RememberingError(f"{options.out} is not empty; choose another --out")

    from remembering.runtime.bars import ProgressBars

    demo(options.out or unused_folder(Path("runs/demo")), ProgressBars())
    return 0


def demo(out: Path, progress: Progress) -> list[RunResult]:
    """Run the experiment `digits-5`, show its results, and return those of model and baselines."""
    from remembering.cli.terminal import show
    from remembering.experiments.compare import run_experiment
    from remembering.experiments.spec import MODEL, find
    from remembering.experiments.stream import make_stream
    from remembering.model import RememberingTransformer
    from remembering.report.collect import group_runs
    from remembering.report.page import write_report
    from remembering.report.tables import units_table

    experiment = find(EXPERIMENT).variants()[None]
    print(
        "A small frozen Vision Transformer that was pretrained on letters learns ten digits in\n"
        "five tasks of two. It then classifies single images without knowing their task."
    )
    results = run_experiment(EXPERIMENT, experiment, out, progress=progress)
    (group,) = group_runs(results)
    show(units_table(group))
    _show_predictions(RememberingTransformer.load(out / MODEL), make_stream(experiment))
    page = write_report([out], out / "report")
    accuracy = {unit: result.accuracy for unit, result in results[0].units.items()}
    others = {result.config.method: result.units for result in results[1:]}
    published = others["ours-published"]
    print(
        f"\nAfter five tasks, {accuracy['sample']:.1%} of single test images of all tasks are "
        f"classified correctly without task labels;\none adapter fine-tuned on one task after "
        f"another has {others['finetune']['sample'].accuracy:.1%}. The paper's configuration has "
        f"{published['sample'].accuracy:.1%} on single images, and\n"
        f"{published['task'].accuracy:.1%} if all test images of a task are routed together."
    )
    print(f"\nThe model, results and plots are in {out}; the report is {page}")
    return results


def _show_predictions(model: RememberingTransformer, stream: Stream) -> None:
    """Print the predictions for one test image of each class."""
    import torch
    from rich.console import Console
    from rich.table import Table

    table = Table("class", "prediction", "probability", "chosen adapter", "correct adapter")
    for position, data in enumerate(stream.tasks):
        for label in data.test.classes:
            first = torch.tensor([data.test.labels.index(label)])
            prediction = model.predict(data.test.images[first])
            correct = model.tasks[position].adapter
            table.add_row(
                str(label),
                str(prediction.labels[0]),
                f"{float(prediction.confidence[0]):.2f}",
                str(int(prediction.adapters[0])),
                str(correct),
                style="" if prediction.labels[0] == label else "red",
            )
    table.title = "Single images"
    Console().print(table)
