"""Small streams of digits for tests of rivals, and rivals taught on them."""

from __future__ import annotations

from functools import cache

import torch

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES, Baseline
from remembering.baselines.base import accuracy
from remembering.config import Settings
from remembering.data.sources import load
from remembering.data.streams.split import split
from remembering.data.streams.stream import limit

SETTINGS = Settings(epochs=2, batch_size=16, lr=3e-3, rank=2)
DIGITS = split(limit(load("digits"), 24, 16, seed=0), 5, seed=0).tasks
STREAM = DIGITS[:2]
QUICK: dict[str, dict[str, float]] = {
    "ranpac": {"projection": 300},
    "ranpac_frozen": {"projection": 300},
    "ewc": {"images": 20},
    "online_ewc": {"images": 20},
    "mnemonics": {"memory": 40, "epochs": 2},
    "clom": {"turns": 2},
    "bir": {"hidden": 100, "steps": 50},
    "bir_si": {"hidden": 100, "steps": 50},
}
"""Options that make a method quick here; what it does stays the same."""


def made(name: str, backbone: Backbone, settings: Settings = SETTINGS) -> Baseline:
    return BASELINES[name](backbone, settings, **QUICK.get(name, {}))


def taught(name: str, backbone: Backbone, **options: float) -> Baseline:
    learner = BASELINES[name](backbone, SETTINGS, **(QUICK.get(name, {}) | options))
    for data in STREAM:
        learner.learn(data.train)
    return learner


def on_digits(name: str, backbone: Backbone, **options: float) -> float:
    """Accuracy on all ten digits, after five tasks of two."""
    in_force = {**BASELINES[name].defaults, **QUICK.get(name, {}), **options}
    return _reached(name, backbone, tuple(in_force.items()))


@cache
def _reached(name: str, backbone: Backbone, options: tuple[tuple[str, float], ...]) -> float:
    learner = BASELINES[name](backbone, SETTINGS, **dict(options))
    for data in DIGITS:
        learner.learn(data.train)
    reached = [accuracy(learner.predict(data.test.images), data.test.labels) for data in DIGITS]
    return sum(reached) / len(reached)


def same(one: Baseline, other: Baseline) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
