"""Fitting the generative model of one task: closed forms against the trained autoencoder.

    python benchmarks/router_fitting.py

On the same features: 1,000 images of ten classes, the paper's 197 token means and the 1,920 that
the default router reads of ViT-Ti/16. The autoencoder is trained as in the paper.
"""

from __future__ import annotations

from functools import partial

import torch
from common import Row, compare, interleaved, parser, publish

from remembering.config import RouterSettings
from remembering.routers import make_router

IMAGES, CLASSES = 1000, 10


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
    publish("Fitting routers", rows, arguments.json)


def _fit(kind: str, features: torch.Tensor, targets: torch.Tensor) -> None:
    settings = RouterSettings(kind=kind).resolved(12)  # type: ignore[arg-type]
    make_router(settings).fit(features, targets, torch.Generator().manual_seed(0))


if __name__ == "__main__":
    main()
