"""Measure prediction, from images of 32 px to labels, against the bare backbone.

    python benchmarks/prediction.py --backbone FOLDER

The bare backbone is the forward pass of transformers. The first measurement uses 20 adapters in a
mixed batch without routing, and reports the rate relative to that of `torch.mm` in the same run.
The second is end to end with the default settings (resize, embed, route, adapt, classify, second
views): for tasks of one domain, which share an adapter, and for ten domains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from common import Row, compare, interleaved, load, parser, pixels, publish
from mixed_batch import bank_of, ours, theirs
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.config import Settings
from remembering.data.task import Task
from remembering.model import RememberingTransformer
from remembering.routing import Router
from remembering.state import TaskRecord

BATCH, CLASSES = 64, 10
R = TypeVar("R", bound=Router)


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
    learned = learn_one(backbone)
    models: dict[str, tuple[RememberingTransformer, float | None]] = {
        "1 task": (model_of(learned, 1, 1), 0.85),
        "10 tasks": (model_of(learned, 10, 1), 0.85),
        "1,000 tasks": (model_of(learned, 1000, 1), 0.85),
        "10 tasks of 10 domains": (model_of(learned, 10, 10), None),
    }
    candidates: dict[str, Any] = {
        name: partial(model.predict, images) for name, (model, _) in models.items()
    }
    times = interleaved({**candidates, "bare": plain}, turns)
    return [
        compare(
            f"{size} px, default settings, {name}",
            times[name],
            "bare backbone",
            times["bare"],
            goal,
        )
        for name, (_, goal) in models.items()
    ]


def learn_one(backbone: Backbone) -> RememberingTransformer:
    """Return a model that learned one task of random images, without training its adapter."""
    images = torch.randint(0, 256, (320, 3, 32, 32), dtype=torch.uint8)
    model = RememberingTransformer(backbone, Settings(epochs=0, exact_forgetting=False))
    model.learn(Task("random", images, [i % CLASSES for i in range(len(images))]))
    return model


def model_of(model: RememberingTransformer, tasks: int, adapters: int) -> RememberingTransformer:
    """Return a model with many tasks like the first one of another, without learning them."""
    state = model.state
    router, classifier = state.router, state.classifiers[0]
    numbers = [range(a, tasks, adapters) for a in range(adapters)]
    classes = {n: tuple(range(CLASSES * n, CLASSES * (n + 1))) for n in range(tasks)}
    state = replace(
        state,
        router=_many(router, range(tasks)),
        classifiers={a: _many(classifier, own) for a, own in enumerate(numbers)},
        domains=dict.fromkeys(range(adapters), state.domains[0]),
        tasks=tuple(TaskRecord(n, str(n), classes[n], 320, n % adapters) for n in range(tasks)),
        adapters=bank_of(model.backbone, adapters, state.settings.rank),
        next_number=tasks,
    )
    return RememberingTransformer(model.backbone, state=state)


def _many(router: R, numbers: Iterable[int]) -> R:
    """Return a router with several experts like its first one."""
    first = router.experts[0]
    rng = torch.Generator().manual_seed(0)
    noise = first["sums"].std()
    experts = {
        n: {
            **first,
            "sums": first["sums"] + noise * torch.randn(first["sums"].shape, generator=rng),
        }
        for n in numbers
    }
    # The covariance of one task: with the count of all tasks its shrinkage would vanish, and the
    # scatter of a few hundred images is singular.
    return type(router)(router.settings, experts, router.shared)


if __name__ == "__main__":
    main()
