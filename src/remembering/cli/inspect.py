"""`remember inspect`: show what a model has learned, or verify its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from remembering import schema
from remembering.cli.parsing import Flag, parse
from remembering.cli.text import print_error

if TYPE_CHECKING:
    from remembering.model import RememberingTransformer


@dataclass(frozen=True)
class Inspect:
    """Show what a model has learned: tasks, classes, adapters, footprint.

    Attributes:
        model: Folder of the model.
        verify: Check every file against the manifest instead.
        json: Print JSON.
        backbone: Where the backbone of the model is now, if it was moved.
    """

    model: tyro.conf.Positional[Path]
    verify: Flag = False
    json: Flag = False
    backbone: str | None = None


def main(arguments: list[str]) -> int:
    """Run `remember inspect` and return its exit code."""
    options = parse(Inspect, arguments, "inspect")
    if options.verify:
        return _verify(options.model)

    from remembering.model import RememberingTransformer

    model = RememberingTransformer.load(options.model, backbone=options.backbone)
    if options.json:
        print(json.dumps(_description(model), indent=1))
    else:
        _show(model)
    return 0


def _verify(folder: Path) -> int:
    from remembering.storage.manifest import read_manifest
    from remembering.storage.verify import verify

    problems = verify(folder)
    for problem in problems:
        print_error(problem)
    if not problems:
        print(f"{len(read_manifest(folder).files)} files are intact")
    return 1 if problems else 0


def _description(model: RememberingTransformer) -> dict[str, Any]:
    from remembering.learning.held_out import held_out

    found = held_out(model.state)
    return {
        "backbone": model.backbone.name,
        "image_size": model.backbone.image_size,
        "tasks": [vars(task) for task in model.tasks],
        "adapters": list(model.state.adapters),
        "held_out": found and {name: vars(count) for name, count in found.tasks.items()},
        "settings": schema.write(model.settings),
        "footprint": schema.write(model.footprint()),
    }


def _show(model: RememberingTransformer) -> None:
    from remembering.cli.terminal import cell, listing, stdout_console
    from remembering.learning.held_out import held_out

    found = held_out(model.state)
    numbers = ["images", "adapter", *(["held out, correct"] if found else [])]
    table = listing(["task", "classes", *numbers], numeric=numbers)
    for task in model.tasks:
        row = [task.name, ", ".join(map(str, task.classes)), f"{task.images:,}", task.adapter]
        table.add_row(*map(cell, [*row, found.tasks[task.name]] if found else row))
    console = stdout_console()
    console.print(table)
    for name, text in _facts(model):
        console.print(cell(f"{name:11}{text}"))


_ADAPTER_FOR = {"novelty": "novel domain", "task": "task", "first": "model"}


def _facts(model: RememberingTransformer) -> Iterator[tuple[str, str]]:
    from remembering.inference.predict import layers_run
    from remembering.report.table import bytes_text, size

    settings, router, depth = model.settings, model.settings.router, model.backbone.depth
    limit = f" (capacity {settings.capacity})" if settings.capacity else ""
    classifier = settings.classifier
    footprint = model.footprint()
    yield "backbone", f"{model.backbone.name} at {model.backbone.image_size} px, frozen"
    yield (
        "adapters",
        f"{len(model.state.adapters)}{limit}, rank {settings.rank}, from layer "
        f"{settings.first_layer}, one for each {_ADAPTER_FOR[settings.adapters]}",
    )
    yield "router", f"{router.kind} on layers {', '.join(map(str, router.layers))}"
    layers = f" on layers {', '.join(map(str, classifier.layers))}" if classifier.layers else ""
    yield "classifier", f"{classifier.kind}{layers}"
    yield (
        "inference",
        f"{layers_run(model.state, depth):.3g} layers per image on average; the backbone has "
        f"{depth}",
    )
    parameters = {"adapter": footprint.adapters, "head": footprint.heads}
    parameters["router and class statistics"] = footprint.routers
    parts = [f"{size(count)} {name}" for name, count in parameters.items() if count]
    replay = f", {bytes_text(footprint.replay_bytes)} of it replay images" * bool(
        footprint.replay_images
    )
    yield (
        "footprint",
        f"{bytes_text(footprint.bytes)}{replay}; {bytes_text(footprint.forget_bytes)} more for "
        f"exact forgetting; parameters: {', '.join(parts) or 'none'}",
    )
