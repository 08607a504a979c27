"""`remember inspect`: what a model has learned."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from remembering import schema
from remembering.model import RememberingTransformer


def inspect(folder: Path, as_json: bool, backbone: str | None) -> None:
    """Print tasks, classes, gate, settings and footprint of the model in a folder."""
    model = RememberingTransformer.load(folder, backbone)
    footprint = model.footprint().as_dict()
    if as_json:
        about = {
            "backbone": model.backbone.name,
            "image_size": model.backbone.image_size,
            "tasks": [vars(record) for record in model.tasks],
            "adapters": list(model.adapters),
            "settings": schema.write(model.settings),
            "footprint": footprint,
        }
        print(json.dumps(about, indent=1))
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table("task", "classes", "images", "adapter")
    for record in model.tasks:
        classes = ", ".join(map(str, record.classes))
        table.add_row(Text(record.name), Text(classes), str(record.images), str(record.adapter))
    console.print(table)
    router = model.settings.router
    layers = ", ".join(map(str, router.layers))
    for line in (
        f"backbone   {model.backbone.name} at {model.backbone.image_size} px, frozen",
        f"adapters   {len(model.adapters)}"
        + (f" of at most {model.settings.capacity}" if model.settings.capacity else "")
        + f", rank {model.settings.rank}, from layer {model.settings.first_layer}",
        f"training   augmentation {model.settings.augment}; "
        f"what enters layer {model.settings.first_layer} is "
        + ("kept between epochs" if model.settings.augment == "none" else "new in every epoch"),
        f"router     {router.kind} on layer {layers}"
        + (
            f", through feature_adapter of rank {router.feature_rank}; "
            if model.feature_adapter
            else "; "
        )
        + f"an image runs through {model.layers_run} layers, the backbone has "
        f"{model.backbone.depth}",
        f"footprint  {footprint['adapters']:,} adapter, {footprint['heads']:,} head and "
        f"{footprint['routers']:,} router parameters; {footprint['bytes']:,} bytes, of them "
        f"{footprint['replay_bytes']:,} of replay images",
    ):
        console.print(Text(line))
