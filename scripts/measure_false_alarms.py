"""False alarms after every task of a stream, and after forgetting and relearning tasks.

    python scripts/measure_false_alarms.py
    python scripts/measure_false_alarms.py --source cifar100 --tasks 10 --data FOLDER \
        --backbone FOLDER --image-size 112

Each row is the share of images of the tasks learned so far that are flagged as unknown, over all
seeds, with its standard error. The images are training images that were not learned; with --test,
test images. After the last task, the first, the middle and the last task are forgotten and learned
again, one after the other. Accuracy is of single images (unit `sample`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import torch

from remembering.data.images import joined
from remembering.data.sources import Source, load
from remembering.data.sources.base import LabelledImages
from remembering.data.streams.split import split
from remembering.data.streams.stream import limit
from remembering.data.task import Task
from remembering.model import RememberingTransformer
from remembering.runtime.seeding import permutation

Counts = tuple[int, int, int]
"""False alarms, correct answers, images."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", default="digits")
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--backbone", default="bundled")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--per-class", type=int, default=100, help="images learned per class")
    parser.add_argument("--held-out", type=int, default=40, help="images measured per class")
    parser.add_argument("--rate", type=float, default=0.05, help="requested false-alarm rate")
    parser.add_argument("--seeds", type=int, default=5, help="class orders, from seed 100 on")
    parser.add_argument("--epochs", type=int, help="0: do not train adapters")
    parser.add_argument("--test", action="store_true", help="measure test images")
    options = parser.parse_args()
    source, rows = load(options.source, options.data), dict[str, Counts]()
    for seed in range(100, 100 + options.seeds):
        for name, counts in _measured(source, options, seed):
            old = rows.get(name, (0, 0, 0))
            rows[name] = (old[0] + counts[0], old[1] + counts[1], old[2] + counts[2])
            print(f"seed {seed}, {name}: {counts[0] / counts[2]:.1%} false alarms", flush=True)
    print(f"\n| after | false alarms at {options.rate:.0%} | accuracy | images |")
    print("| --- | ---: | ---: | ---: |")
    for name, (alarms, correct, images) in rows.items():
        rate = alarms / images
        error = math.sqrt(rate * (1 - rate) / images)
        accuracy = f"{100 * correct / images:.1f} %"
        print(f"| {name} | {100 * rate:.1f} ± {100 * error:.1f} % | {accuracy} | {images} |")


def _measured(
    source: Source, options: argparse.Namespace, seed: int
) -> Iterator[tuple[str, Counts]]:
    if not options.test:
        source = _held_out(source, options.per_class, options.held_out, seed)
    source = limit(source, options.per_class, options.held_out, seed)
    tasks = split(source, options.tasks, seed).tasks
    model = RememberingTransformer.from_backbone(
        options.backbone, image_size=options.image_size, seed=seed, epochs=options.epochs
    )
    for i, task in enumerate(tasks, start=1):
        model.learn(task.train)
        measured = [other.test for other in tasks[:i]]
        yield f"task {i}", _counts(model, measured, options.rate)
    for i in sorted({0, len(tasks) // 2, len(tasks) - 1}):
        model.forget(tasks[i].train.name)
        others = [other.test for other in tasks if other is not tasks[i]]
        yield f"forgetting task {i + 1}", _counts(model, others, options.rate)
        model.learn(tasks[i].train)
        every = [other.test for other in tasks]
        yield f"relearning task {i + 1}", _counts(model, every, options.rate)


def _held_out(source: Source, learned: int, measured: int, seed: int) -> Source:
    """Return a source whose test images are training images that are not learned."""
    data, train, test = source.train, [], []
    for label in range(len(source.classes)):
        own = (data.labels == label).nonzero().flatten()
        own = own[permutation(len(own), seed, "held out", label)]
        train.append(own[:learned])
        test.append(own[learned : learned + measured])
    parts: list[LabelledImages] = [
        data.take(torch.cat(rows).sort().values) for rows in (train, test)
    ]
    return Source(source.name, *parts, source.classes)


def _counts(model: RememberingTransformer, tasks: list[Task], rate: float) -> Counts:
    labels = [label for task in tasks for label in task.labels]
    prediction = model.predict(joined([task.images for task in tasks]), false_alarm_rate=rate)
    assert prediction.unknown is not None
    correct = sum(a == b for a, b in zip(prediction.labels, labels, strict=True))
    return int(prediction.unknown.sum()), correct, len(labels)


if __name__ == "__main__":
    main()
