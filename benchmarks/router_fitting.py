"""Measure fitting the expert of one task: closed forms against the trained autoencoder.

    python benchmarks/router_fitting.py --backbone FOLDER

All experts are fitted to the same features of 5,000 images of ten classes, the size of a task of
CIFAR-100 in ten: the 197 token means of the paper, and the 1,920 features that the default router
reads from a ViT-Ti/16. The autoencoder is trained as in the paper. The second comparison is the
default router against training the adapter of the same task, for 1,000 images: fitting alone, and
with extracting the features, against the epochs of the default settings, of which one is timed.
"""

from __future__ import annotations

from functools import partial

import torch
from common import Row, Timing, compare, interleaved, load, parser, publish

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.config import RouterSettings, Settings
from remembering.inference.encoding import encode_task
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import TrainingSet, train
from remembering.routing import make_router

IMAGES, TRAINED, CLASSES = 5000, 1000, 10


def main() -> None:
    arguments = parser(__doc__).parse_args()
    rows: list[Row] = []
    targets = torch.arange(IMAGES) % CLASSES
    for width in (197, 1920):
        features = torch.rand(IMAGES, width, generator=torch.Generator().manual_seed(0))
        candidates = {
            kind: partial(_fit, kind, features, targets)
            for kind in ("gaussian", "subspace", "autoencoder")
        }
        times = interleaved(candidates, arguments.turns)
        for kind in ("gaussian", "subspace"):
            what = f"{kind}, {width:,} features of {IMAGES:,} images"
            trained = times["autoencoder"]
            rows.append(compare(what, times[kind], "trained autoencoder", trained, 20.0))
    rows += _against_training(arguments.backbone, targets[:TRAINED])
    publish("Fitting routers", rows, arguments.json)


def _against_training(folder: str | None, targets: torch.Tensor) -> list[Row]:
    backbone, _ = load(folder, 112)
    images = torch.randint(0, 256, (TRAINED, 3, 32, 32), dtype=torch.uint8)
    settings = Settings(epochs=1)
    router = make_router(settings.router.resolved(backbone.depth))
    adapter = Adapter.new(backbone, settings.rank, 0, torch.Generator())
    training_set = TrainingSet(TokenCache(backbone, images, 0).filled(), targets, "noise", 0)

    def extract() -> torch.Tensor:
        return encode_task(backbone, router, 0, images, cache_tokens=False).features

    features = extract()

    def fit(features: torch.Tensor) -> None:
        router.with_expert(0, router.fit(features, targets, torch.Generator()))

    def epoch() -> None:
        train(backbone, adapter, Head.linear(range(CLASSES), backbone), training_set, settings)

    candidates = {"alone": lambda: fit(features), "extract": lambda: fit(extract()), "epoch": epoch}
    times = interleaved(candidates, turns=3, warm_up=0)
    epochs = Settings().epochs_for(TRAINED)
    all_epochs = Timing([epochs * seconds for seconds in times["epoch"].seconds])
    peer = f"training the adapter, {epochs} epochs"
    what = f"default router, {TRAINED:,} images at 112 px"
    return [
        compare(f"{what}, fitting alone", times["alone"], peer, all_epochs, 10.0),
        compare(f"{what}, with feature extraction", times["extract"], peer, all_epochs, 10.0),
    ]


def _fit(kind: str, features: torch.Tensor, targets: torch.Tensor) -> None:
    settings = RouterSettings(kind=kind).resolved(12)  # type: ignore[arg-type]
    make_router(settings).fit(features, targets, torch.Generator().manual_seed(0))


if __name__ == "__main__":
    main()
