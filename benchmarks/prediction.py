"""Measure prediction, from images of 32 px to labels, against the bare backbone.

    python benchmarks/prediction.py --backbone FOLDER

The bare backbone is the forward pass of transformers. The first measurement uses 20 adapters in a
mixed batch without routing, and reports the rate relative to that of `torch.mm` in the same run.
The second is end to end (resize, embed, route, adapt, classify): once with routing at half depth
and adapters above it, which takes a single pass, and once with the default settings, which do not.
"""

from __future__ import annotations

from dataclasses import replace
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
from remembering.inference.predict import router_features
from remembering.model import RememberingTransformer
from remembering.routing.gaussian import GaussianRouter
from remembering.state import ModelState, TaskRecord

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
    """Return the floating-point operations of the matrix products for one image."""
    dim, hidden = backbone.dim, 4 * backbone.dim
    patch = 3 * 16**2 * dim * (tokens - 1)
    layer = tokens * (4 * dim**2 + 2 * dim * hidden) + 2 * tokens**2 * dim
    last = tokens * 2 * dim**2 + 2 * dim**2 + 2 * dim * hidden + 2 * tokens * dim
    return 2.0 * (patch + (backbone.depth - 1) * layer + last)


def _end_to_end(backbone: Backbone, plain: Any, size: int, turns: int) -> list[Row]:
    images = torch.randint(0, 256, (BATCH, 3, 32, 32), dtype=torch.uint8)
    single = Settings(first_layer=HALF, router=RouterSettings(layers=(2, 3, 4, 5, HALF)))
    models: dict[str, tuple[RememberingTransformer, float | None]] = {
        f"single pass, adapters above layer {HALF}, {tasks} tasks": (
            model_of(backbone, single, tasks),
            0.91,
        )
        for tasks in (5, 1000)
    }
    models["default: feature adapter, flip, adapters in all layers, 5 tasks"] = (
        model_of(backbone, Settings(), 5),
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


def model_of(backbone: Backbone, settings: Settings, tasks: int) -> RememberingTransformer:
    """Return a model with random tasks, assembled without learning them."""
    state = ModelState.empty(settings, backbone)
    if state.needs_feature_adapter:
        rng = torch.Generator().manual_seed(0)
        rank = settings.router.feature_rank
        feature_adapter = Adapter.new(backbone, rank, settings.first_layer, rng)
        state = replace(state, feature_adapter=feature_adapter)
    images = torch.randint(0, 256, (32, 3, 32, 32), dtype=torch.uint8)
    features = router_features(state, backbone, images)
    expert = dict(state.router.fit(features, torch.arange(32) % CLASSES, torch.Generator()))
    scatter = expert.pop("scatter")
    experts = {
        n: {**expert, "sums": expert["sums"] + torch.randn(expert["sums"].shape).double()}
        for n in range(tasks)
    }
    count = torch.tensor(32.0 * tasks).double()
    shared = {"scatter": scatter * tasks, "count": count, "temperature": torch.tensor(1.0).double()}
    classes = {n: tuple(range(CLASSES * n, CLASSES * (n + 1))) for n in range(tasks)}
    state = replace(
        state,
        router=GaussianRouter(state.router.settings, experts, shared),
        tasks=tuple(TaskRecord(n, str(n), classes[n], 32, n) for n in range(tasks)),
        adapters=bank_of(backbone, tasks, 1, settings.first_layer),
        heads={n: Head.linear(classes[n], backbone) for n in range(tasks)},
        next_number=tasks,
    )
    return RememberingTransformer(backbone, state=state)


if __name__ == "__main__":
    main()
