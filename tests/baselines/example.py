"""Small streams of digits, and baselines trained on them."""

from __future__ import annotations

from functools import cache

import torch

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES, Baseline
from remembering.config import Settings
from remembering.data.sources import load
from remembering.data.streams.split import split
from remembering.data.streams.stream import limit
from remembering.evaluation.metrics import accuracy

SETTINGS = Settings.paper(epochs=2, batch_size=16, lr=3e-3, rank=2)
DIGITS = split(limit(load("digits"), 24, 16, seed=0), 5, seed=0).tasks
STREAM = DIGITS[:2]
QUICK: dict[str, dict[str, float]] = {
    "joint-tuned": {"rank": 2, "epochs": 4, "lr": 3e-3, "augment": 1},
    "joint-gaussian": {"rank": 2, "epochs": 4, "lr": 3e-3, "augment": 1},
    "ranpac": {"projection": 300},
    "ranpac_frozen": {"projection": 300},
    "ranpac-our-features": {"projection": 300},
    "ewc": {"images": 20},
    "online_ewc": {"images": 20},
    "mnemonics": {"memory": 40, "epochs": 2},
    "clom": {"turns": 2},
    "bir": {"hidden": 100, "steps": 50},
    "bir_si": {"hidden": 100, "steps": 50},
}
"""Options that shorten training without changing the method."""


def made(name: str, backbone: Backbone, settings: Settings = SETTINGS) -> Baseline:
    """Return a new baseline with quick options."""
    return BASELINES[name](backbone, settings, **QUICK.get(name, {}))


def taught(name: str, backbone: Backbone, **options: float) -> Baseline:
    """Return a baseline after the two tasks of `STREAM`."""
    learner = BASELINES[name](backbone, SETTINGS, **(QUICK.get(name, {}) | options))
    for data in STREAM:
        learner.learn(data.train)
    return learner


def on_digits(name: str, backbone: Backbone, **options: float) -> float:
    """Return the accuracy on all ten digits after five tasks of two."""
    all_options = {**BASELINES[name].defaults, **QUICK.get(name, {}), **options}
    return _accuracy(name, backbone, tuple(all_options.items()))


@cache
def _accuracy(name: str, backbone: Backbone, options: tuple[tuple[str, float], ...]) -> float:
    learner = BASELINES[name](backbone, SETTINGS, **dict(options))
    for data in DIGITS:
        learner.learn(data.train)
    each = [accuracy(learner.predict(data.test.images).labels, data.test.labels) for data in DIGITS]
    return sum(each) / len(each)


def same(one: Baseline, other: Baseline) -> bool:
    """Return whether two baselines have identical state dicts."""
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
