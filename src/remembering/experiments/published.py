"""The numbers that the paper prints.

Accuracies are percentages. The paper's own ("Ours") were reached with ViT-B/16 pretrained on
ImageNet-21k and one adapter chosen for the whole test set of a task: routing unit `task`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One accuracy of the paper, the table that contains it, and its routing unit."""

    accuracy: float
    deviation: float
    where: str
    unit: str = "task"


@dataclass(frozen=True)
class PublishedFootprint:
    """A footprint of the paper on CIFAR10/5, in millions of trainable parameters."""

    method: str
    millions: float
    where: str


SPLIT_TASKS = {
    "cifar10-5": "CIFAR10/5",
    "cifar100-10": "CIFAR100/10",
    "cifar100-20": "CIFAR100/20",
}


def _table_1(
    *rows: tuple[str, float, float, float, float, float, float],
) -> dict[str, dict[str, Published]]:
    return {
        method: {
            split: Published(accuracy, deviation, "Table 1")
            for split, accuracy, deviation in zip(
                SPLIT_TASKS.values(), numbers[::2], numbers[1::2], strict=True
            )
        }
        for method, *numbers in rows
    }


TABLE_1 = _table_1(
    ("SupSup", 26.2, 0.46, 33.1, 0.47, 12.3, 0.30),
    ("BI-R+SI", 41.7, 0.25, 22.7, 0.81, 19.1, 0.04),
    ("HyperNet", 47.4, 5.78, 29.7, 2.19, 19.4, 1.44),
    ("MUC", 53.6, 0.95, 30.0, 1.37, 14.4, 0.93),
    ("OWM", 51.7, 0.06, 29.0, 0.72, 24.2, 0.11),
    ("PASS", 47.3, 0.97, 36.8, 1.64, 25.3, 0.81),
    ("LwF", 54.7, 1.18, 45.3, 0.75, 44.3, 0.46),
    ("iCaRL", 63.4, 1.11, 51.4, 0.99, 47.8, 0.48),
    ("Mnemonics", 64.1, 1.47, 51.0, 0.34, 47.6, 0.74),
    ("DER++", 66.0, 1.27, 55.3, 0.10, 46.6, 1.44),
    ("IL2A", 92.0, 0.23, 60.3, 0.14, 57.9, 0.31),
    ("CLOM", 88.0, 0.48, 65.2, 0.71, 58.0, 0.45),
    ("SSRE", 90.5, 0.61, 65.0, 0.27, 61.7, 0.15),
    ("FeTrIL", 90.9, 0.38, 65.2, 0.16, 61.5, 0.73),
    ("Ours", 99.3, 0.24, 86.1, 2.09, 79.9, 3.56),
)
"""Average task accuracy in the split tasks, by method and split."""

TABLE_2 = {
    5: Published(99.3, 0.24, "Table 2"),
    3: Published(93.2, 0.72, "Table 2"),
    2: Published(87.1, 0.85, "Table 2"),
}
"""CIFAR10/5 by number of adapters E, with a replay memory of 512."""

TABLE_3 = {
    512: Published(93.2, 0.72, "Table 3"),
    256: Published(90.5, 0.41, "Table 3"),
    128: Published(86.6, 0.26, "Table 3"),
}
"""CIFAR10/5 with three adapters by replay memory M."""

FOOTPRINTS = (
    PublishedFootprint("FeTrIL", 11.18, "Section 4.2"),
    PublishedFootprint("Ours, E = 5", 0.37, "Table 2"),
    PublishedFootprint("Ours, E = 3", 0.22, "Table 2"),
    PublishedFootprint("Ours, E = 2", 0.15, "Table 2"),
)


def published_method(experiment: str, method: str | None) -> Published | None:
    """Return what Table 1 prints for a method on this experiment.

    >>> published_method("cifar10-5", "LwF").accuracy
    54.7
    """
    split = SPLIT_TASKS.get(experiment)
    return TABLE_1.get(method, {}).get(split) if method and split else None


def is_cifar10_5(experiment: str) -> bool:
    """Return whether an experiment is on the stream of Tables 2 and 3 and the footprint chart."""
    return experiment.rpartition("/")[2] in ("cifar10-5", "capacity", "replay")


def published_for(experiment: str, variant: str | None = None) -> Published | None:
    """Return what the paper prints for this experiment and variant.

    Table 1 has one experiment per split. Variants of cifar10-5, capacity and replay may name the
    capacity E (Table 2) or the replay memory M (Table 3).

    >>> published_for("cifar10-5", "E=3")
    Published(accuracy=93.2, deviation=0.72, where='Table 2', unit='task')
    >>> published_for("paper/replay", "M=128").accuracy
    86.6
    """
    experiment = experiment.rpartition("/")[2]
    if variant is None:
        split = SPLIT_TASKS.get(experiment)
        return TABLE_1["Ours"][split] if split else None
    settings = {key: int(value) for key, value in re.findall(r"([A-Za-z]\w*)\s*=\s*(\d+)", variant)}
    if not is_cifar10_5(experiment) or not settings or not settings.keys() <= {"E", "M"}:
        return None
    if "M" in settings:
        return TABLE_3.get(settings["M"]) if settings.get("E", 3) == 3 else None
    return TABLE_2.get(settings["E"])
