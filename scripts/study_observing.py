"""Compare streams without task boundaries with the same images with known boundaries.

    python scripts/study_observing.py
    python scripts/study_observing.py --source cifar100 --data FOLDER --backbone FOLDER

Four streams of the same training images, in batches: tasks one after another; the same with the
first task repeated at the end; with the last quarter of each task mixed with the first quarter of
the next; and all tasks shuffled. Accuracy is of single test images (unit sample).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.sources import load
from remembering.data.streams.split import split
from remembering.data.streams.stream import Stream, limit
from remembering.data.task import Label, Task
from remembering.evaluation.metrics import accuracy
from remembering.model import RememberingTransformer
from remembering.runtime.seeding import permutation

BATCH, SEED = 50, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", default="digits")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--backbone", default="bundled")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 2, 2, 2, 2])
    parser.add_argument("--per-class", type=int, default=100)
    arguments = parser.parse_args()
    backbone = Backbone.load(arguments.backbone, arguments.image_size)
    source = limit(load(arguments.source, arguments.data), arguments.per_class, 25, SEED)
    stream = split(source, arguments.sizes, SEED)
    print("| stream | tasks found | adapters | accuracy (%) |")
    print("| --- | ---: | ---: | ---: |")
    learned = RememberingTransformer(backbone)
    for data in stream.tasks:
        learned.learn(data.train)
    _print("boundaries given", learned, stream)
    for name, batches in _streams(stream).items():
        model = RememberingTransformer(backbone)
        for images, labels in batches:
            model.observe(images, labels)
        model.flush()
        _print(name, model, stream)


def _streams(stream: Stream) -> dict[str, list[tuple[Tensor, list[Label]]]]:
    """Return the batches of the four streams by name."""
    parts = [_shuffled(data.train, i) for i, data in enumerate(stream.tasks)]
    images = torch.cat([part for part, _ in parts])
    labels = [label for _, part in parts for label in part]
    ends = torch.tensor([len(part) for _, part in parts]).cumsum(0)[:-1].tolist()
    quarter = len(parts[0][1]) // 4
    blurred = torch.arange(len(labels))
    for end in ends:
        rows = slice(end - quarter, end + quarter)
        blurred[rows] = blurred[rows][permutation(2 * quarter, SEED, "blur", end)]
    orders = {
        "consecutive tasks": torch.arange(len(labels)),
        "the first task recurs": torch.cat(
            [torch.arange(len(labels)), torch.arange(len(parts[0][1]))]
        ),
        "blurred boundaries": blurred,
        "all shuffled": permutation(len(labels), SEED, "shuffled"),
    }
    return {
        name: [(images[rows], [labels[i] for i in rows.tolist()]) for rows in order.split(BATCH)]
        for name, order in orders.items()
    }


def _shuffled(task: Task, number: int) -> tuple[Tensor, list[Label]]:
    order = permutation(len(task), SEED, "observe", number)
    return torch.as_tensor(task.images)[order], [task.labels[i] for i in order.tolist()]


def _print(name: str, model: RememberingTransformer, stream: Stream) -> None:
    tests = [data.test for data in stream.tasks]
    shares = [accuracy(model.predict(test.images).labels, test.labels) for test in tests]
    mean = 100 * sum(shares) / len(shares)
    print(f"| {name} | {len(model.tasks)} | {len(model.state.adapters)} | {mean:.1f} |", flush=True)


if __name__ == "__main__":
    main()
