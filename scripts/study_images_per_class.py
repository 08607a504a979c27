"""How accuracy depends on the number of images per class, on training images only.

    python scripts/study_images_per_class.py --data FOLDER_OF_CIFAR100 --backbone FOLDER

Four tasks of five classes, drawn at random, without training of adapters. Accuracy is of single
images (unit `sample`), on training images that were not learned.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from remembering.data.images import joined
from remembering.data.sources import Source, load
from remembering.data.streams.split import split
from remembering.model import RememberingTransformer
from remembering.runtime.seeding import permutation

TASKS = [5, 5, 5, 5]
MEASURED = 10
"""Images per class that are measured."""


def main() -> None:
    """Print the mean accuracy over all draws of classes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", default="cifar100")
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--image-size", type=int, default=112)
    parser.add_argument("--images", type=int, nargs="+", default=[2, 3, 5, 10, 25])
    parser.add_argument("--seeds", type=int, default=3, help="draws of classes, from seed 100 on")
    options = parser.parse_args()
    source = load(options.source, options.data)
    print("| images per class | accuracy |\n| ---: | ---: |")
    for images in options.images:
        rates = [
            _accuracy(source, options.backbone, options.image_size, images, seed)
            for seed in range(100, 100 + options.seeds)
        ]
        print(f"| {images} | {100 * sum(rates) / len(rates):.0f} % |", flush=True)


def _accuracy(source: Source, backbone: str, size: int, images: int, seed: int) -> float:
    model = RememberingTransformer.from_backbone(backbone, image_size=size, epochs=0)
    tasks = split(_parts(source, images), TASKS, seed).tasks
    for task in tasks:
        model.learn(task.train)
    labels = [label for task in tasks for label in task.test.labels]
    answers = model.predict(joined([task.test.images for task in tasks])).labels
    return sum(a == b for a, b in zip(answers, labels, strict=True)) / len(labels)


def _parts(source: Source, images: int) -> Source:
    """Return a source whose test images are training images that are not learned."""
    data, train, test = source.train, [], []
    for label in range(len(source.classes)):
        own = (data.labels == label).nonzero().flatten()
        own = own[permutation(len(own), 0, "images per class", label)]
        test.append(own[:MEASURED])
        train.append(own[MEASURED : MEASURED + images])
    learned, measured = (data.take(torch.cat(rows).sort().values) for rows in (train, test))
    return Source(source.name, learned, measured, source.classes)


if __name__ == "__main__":
    main()
