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
    return {
        "backbone": model.backbone.name,
        "image_size": model.backbone.image_size,
        "tasks": [vars(task) for task in model.tasks],
        "adapters": list(model.state.adapters),
        "settings": schema.write(model.settings),
        "footprint": schema.write(model.footprint()),
    }


def _show(model: RememberingTransformer) -> None:
    from rich.table import Table

    from remembering.cli.terminal import cell, stdout_console

    table = Table("task", "classes", "images", "adapter")
    for task in model.tasks:
        classes = ", ".join(map(str, task.classes))
        table.add_row(cell(task.name), cell(classes), str(task.images), str(task.adapter))
    console = stdout_console()
    console.print(table)
    for name, text in _facts(model):
        console.print(cell(f"{name:11}{text}"))


_ADAPTER_FOR = {"novelty": "novel domain", "task": "task", "first": "model"}


def _facts(model: RememberingTransformer) -> Iterator[tuple[str, str]]:
    from remembering.inference.predict import layers_run

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
    yield (
        "footprint",
        f"{footprint.adapters:,} adapter, {footprint.heads:,} head and {footprint.routers:,} "
        f"router parameters; {footprint.bytes:,} bytes, of which {footprint.replay_bytes:,} are "
        f"replay images; {footprint.forget_bytes:,} more for exact forgetting",
    )
