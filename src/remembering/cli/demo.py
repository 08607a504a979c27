"""`remember demo`: five tasks of digits in a row, single images answered, a page of plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from remembering.cli.terminal import show
from remembering.data.streams.stream import Stream
from remembering.experiments.run import MODEL, make_stream, run
from remembering.experiments.spec import find
from remembering.model import RememberingTransformer
from remembering.report.page import write_report
from remembering.report.plots import accuracy_curves, reconstruction_heatmap, save
from remembering.report.results import Group
from remembering.report.tables import units_table
from remembering.runtime.progress import Progress

EXPERIMENT = "digits-5"


def demo(out: Path, progress: Progress) -> dict[str, Any]:
    """Run the experiment `digits-5` and show what came of it."""
    experiment = find(EXPERIMENT).variants()[None]
    print(
        "A small frozen Vision Transformer that has only ever seen letters now learns "
        "ten digits,\ntwo at a time. Then it is asked about single images, and nobody tells it "
        "which task they are from."
    )
    results = run(EXPERIMENT, experiment, out, progress=progress)
    group = Group.of([results], [out])
    show(units_table(group))
    _answer_some(RememberingTransformer.load(out / MODEL), make_stream(experiment))
    save(accuracy_curves(group), out, "accuracy")
    save(reconstruction_heatmap(group), out, "reconstruction-errors")
    page = write_report([out], out / "report")
    accuracy, paper = results["accuracy"], results["compared"]
    fine_tuned = results["baselines"]["finetune"]["accuracy"]
    print(
        f"\nNothing is forgotten: with the right adapter given, "
        f"{results['oracle_task_accuracy']:.0%} of the digits are read right after the last task, "
        f"while one adapter\nfine-tuned task after task keeps {fine_tuned:.0%}. What is hard is to "
        f"choose the adapter for a single image: with Gaussians on deep features,\n"
        f"{accuracy['sample']:.0%} of single images are read right; with the paper's router "
        f"{paper['accuracy']['sample']:.0%}, and {paper['accuracy']['task']:.0%} when the images "
        f"of a task are routed together."
    )
    print(f"\nplots, model and numbers are in {out}; the page is {page}")
    return results


def _answer_some(model: RememberingTransformer, stream: Stream) -> None:
    """One test image of each class, answered alone."""
    table = Table("image shows", "answer", "probability", "adapter chosen", "right adapter")
    for position, data in enumerate(stream.tasks):
        for label in data.test.classes:
            first = torch.tensor([data.test.labels.index(label)])
            said = model.predict(data.test.images[first])
            right = model.tasks[position].adapter
            table.add_row(
                str(label),
                str(said.labels[0]),
                f"{float(said.confidence[0]):.2f}",
                str(int(said.adapters[0])),
                str(right),
                style="" if said.labels[0] == label else "red",
            )
    table.title = "Single images, each answered alone"
    Console().print(table)
