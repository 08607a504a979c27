"""Which tasks share an adapter: the novelty test on training images.

    python scripts/study_novelty.py --backbone FOLDER --data FOLDER_OF_CIFAR100

Splits of one data set should share an adapter: the smallest p-value and the largest effect size
over the tasks of a stream are printed, over several class orders. Other data sets should get their
own: both are printed for each data set after each other one. Only training images are used.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings
from remembering.data.images import subset
from remembering.data.sources import Source, load
from remembering.inference.encoding import encode_task
from remembering.routing import make_router
from remembering.routing.domain import Domain
from remembering.runtime.seeding import permutation

PER_CLASS = 100
SPLITS = {"cifar100": 10, "cifar10": 5, "mnist": 5, "fashion-mnist": 5, "digits": 5, "letters": 13}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="bundled")
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-100; left out without one")
    parser.add_argument("--orders", type=int, default=20, help="class orders, from seed 100 on")
    parser.add_argument("--per-class", type=int, default=PER_CLASS)
    options = parser.parse_args()
    backbone = Backbone.load(options.backbone, options.image_size)
    sources = {
        name: load(name, options.data if name == "cifar100" else None)
        for name in SPLITS
        if name != "cifar100" or options.data
    }
    read = {
        name: _features(backbone, source, options.per_class) for name, source in sources.items()
    }
    print("| stream | smallest p-value | largest effect size |\n| --- | ---: | ---: |")
    for name, (features, targets) in read.items():
        found = [
            pair
            for seed in range(100, 100 + options.orders)
            for pair in _stream(features, targets, SPLITS[name], seed)
        ]
        p_value, effect = min(p for p, _ in found), max(d for _, d in found)
        print(f"| {name} in {SPLITS[name]} | {p_value:.1g} | {effect:.1f} |", flush=True)
    print("\n| learned, new | " + " | ".join(read) + " |\n| --- |" + " ---: |" * len(read))
    for name, (features, targets) in read.items():
        domain = Domain.of(features, targets)
        cells = [
            "" if other == name else "{:.1g}; {:.1f}".format(*_test(domain, *read[other])[:2])
            for other in read
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _features(backbone: Backbone, source: Source, per_class: int) -> tuple[Tensor, Tensor]:
    """Return what the router reads of some training images, and their classes."""
    labels = source.train.labels
    classes = [(labels == label).nonzero().flatten() for label in labels.unique()]
    rows = torch.cat([own[permutation(len(own), 0, "novelty")][:per_class] for own in classes])
    router = make_router(RouterSettings().resolved(backbone.depth))
    encoded = encode_task(
        backbone, router, 0, subset(source.train.images, rows), cache_tokens=False
    )
    return encoded.features, labels[rows]


def _test(domain: Domain, features: Tensor, targets: Tensor) -> tuple[float, float, Tensor]:
    """Return p-value, effect size and novelties of a task."""
    novelties = domain.novelties(features, targets)
    return domain.p_value(novelties), domain.effect(novelties), novelties


def _stream(features: Tensor, targets: Tensor, tasks: int, seed: int) -> list[tuple[float, float]]:
    """Return p-value and effect size of each task after the first in a class order."""
    order = targets.unique()[permutation(len(targets.unique()), seed, "split")]
    parts = order.tensor_split(tasks)
    rows = [torch.isin(targets, part).nonzero().flatten() for part in parts]
    domain = Domain.of(features[rows[0]], targets[rows[0]])
    found = []
    for own in rows[1:]:
        p_value, effect, novelties = _test(domain, features[own], targets[own])
        found.append((p_value, effect))
        domain = domain.joined(features[own], novelties)
    return found


if __name__ == "__main__":
    main()
