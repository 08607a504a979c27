"""Prediction, from images of 32 px to labels, against transformers' bare forward.

    python benchmarks/prediction.py --backbone FOLDER

First with 20 adapters in a mixed batch and no routing: the limit is the machine's matrix product,
so its best rate in the same run is measured, too. Then end to end (resize, embed, route, adapt,
classify), with routing at half depth and adapters above it, which is a single pass, and with the
default, which is not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from common import Row, compare, interleaved, load, parser, pixels, publish
from mixed_batch import bank_of, ours, theirs
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings, Settings
from remembering.inference.prediction import TaskRecord
from remembering.model import RememberingTransformer

BATCH, CLASSES, HALF = 64, 2, 6


def main() -> None:
    arguments = parser(__doc__).parse_args()
    rows: list[Row] = []
    shares: dict[str, float] = {}
    for size in (112, 224):
        backbone, bare = load(arguments.backbone, size)
        x = pixels(BATCH, size)
        plain = partial(theirs, bare, x)
        rows += _adapters(backbone, plain, x, size, arguments.turns, shares)
        rows += _end_to_end(backbone, plain, size, arguments.turns)
    publish("Prediction", rows, arguments.json, shares=shares)


def _adapters(
    backbone: Backbone, plain: Any, x: Tensor, size: int, turns: int, shares: dict[str, float]
) -> list[Row]:
    numbers = torch.randint(0, 20, (BATCH,), generator=torch.Generator().manual_seed(1))
    tokens = backbone.embed_pixels(x[:1]).shape[1]
    left = torch.randn(BATCH * tokens, backbone.dim)
    right = torch.randn(backbone.dim, 4 * backbone.dim)
    times = interleaved(
        {
            "ours": partial(ours, backbone, bank_of(backbone, 20, 1), x, numbers),
            "bare": plain,
            "product": partial(torch.mm, left, right),
        },
        turns,
    )
    rate = 2 * left.shape[0] * right.numel() / times["product"].best
    share = BATCH * work(backbone, tokens) / times["ours"].best / rate
    shares[f"{size} px"] = share
    note = f"{share:.0%} of the rate of torch.mm, {rate / 1e9:.0f} GFLOP/s"
    what = f"{size} px, 20 adapters of rank 1, no routing"
    return [compare(what, times["ours"], "bare backbone", times["bare"], 1.15, note)]


def work(backbone: Backbone, tokens: int) -> float:
    """Floating-point operations of the products that one image needs, up to the CLS token."""
    dim, hidden = backbone.dim, 4 * backbone.dim
    patch = 3 * 16**2 * dim * (tokens - 1)
    layer = tokens * (4 * dim**2 + 2 * dim * hidden) + 2 * tokens**2 * dim
    last = tokens * 2 * dim**2 + 2 * dim**2 + 2 * dim * hidden + 2 * tokens * dim
    return 2.0 * (patch + (backbone.depth - 1) * layer + last)


def _end_to_end(backbone: Backbone, plain: Any, size: int, turns: int) -> list[Row]:
    images = torch.randint(0, 256, (BATCH, 3, 32, 32), dtype=torch.uint8)
    single = Settings(first_layer=HALF, router=RouterSettings(layers=(2, 3, 4, 5, HALF)))
    models = {
        f"single pass, adapters above layer {HALF}, {tasks} tasks": (
            known(backbone, single, tasks),
            0.91,
        )
        for tasks in (5, 1000)
    }
    models["default: feature_adapter, mirror image, adapters everywhere, 5 tasks"] = (
        known(backbone, Settings(), 5),
        None,
    )
    candidates: dict[str, Any] = {
        name: partial(model.predict, images) for name, (model, _) in models.items()
    }
    times = interleaved({**candidates, "bare": plain}, turns)
    return [
        compare(f"{size} px, {name}", times[name], "bare backbone", times["bare"], goal)
        for name, (_, goal) in models.items()
    ]


def known(backbone: Backbone, settings: Settings, tasks: int) -> RememberingTransformer:
    """A model of so many random tasks, put together without learning them."""
    model = RememberingTransformer(backbone, settings)
    images = torch.randint(0, 256, (32, 3, 32, 32), dtype=torch.uint8)
    if model.needs_feature_adapter:
        rng = torch.Generator().manual_seed(0)
        model.feature_adapter = Adapter.new(
            backbone, settings.router.feature_rank, settings.first_layer, rng
        )
    features = model.router_features(images)
    targets = torch.arange(32) % CLASSES
    expert = model.router.fit(features, targets, torch.Generator())
    scatter = expert.pop("scatter")
    experts = {
        n: {**expert, "sums": expert["sums"] + torch.randn(expert["sums"].shape).double()}
        for n in range(tasks)
    }
    count = torch.tensor(32.0 * tasks).double()
    shared = {"scatter": scatter * tasks, "count": count, "temperature": torch.ones(1).double()}
    model.router.restore(experts, shared)
    for number, adapter in bank_of(backbone, tasks, 1, settings.first_layer).items():
        classes = tuple(range(CLASSES * number, CLASSES * (number + 1)))
        model.adapters[number] = adapter
        model.heads[number] = Head.linear(classes, backbone)
        model.tasks.append(TaskRecord(number, str(number), classes, 32, number))
    return model


if __name__ == "__main__":
    main()
