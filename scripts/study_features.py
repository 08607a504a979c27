"""How the adapter of a first task should be trained, measured by the accuracy of the whole stream.

    python scripts/study_features.py --backbone FOLDER --image-size 112 --source cifar10 --tasks 5
    python scripts/study_features.py --backbone FOLDER --image-size 112 --source cifar100 \
        --tasks 10 --data FOLDER_OF_CIFAR100 --tested 30 --orders 10

Class Gaussians on the features of the adapter learn the stream, as in the library, and classify
other training images one by one. Only training images are used, in class orders that no result
uses. Training and features are in bfloat16.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.config import Settings
from remembering.data.augmentation import QUARTERS
from remembering.data.sources import load
from remembering.inference.encoding import deep_features, deep_task_features
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import Batch, Callback, RotatedTrainingSet, TrainingSet, train
from remembering.routing.classifier import GaussianClassifier
from remembering.routing.features import extract_features
from remembering.runtime.seeding import generator, permutation


@dataclass(frozen=True)
class Variant:
    """One way to train the adapter.

    Attributes:
        passes: Image passes, relative to the rule of the library without rotations. 0: frozen.
        rotates: Whether orientations are classes of their own.
        distillation: Weight of the squared difference to the features of the frozen backbone.
    """

    passes: float = 1
    rotates: bool = False
    distillation: float = 0.0


VARIANTS = {
    "frozen backbone": Variant(passes=0),
    "flips and shifts": Variant(),
    "the same, distillation": Variant(distillation=1.0),
    "orientations as classes": Variant(rotates=True),
    "the same, twice the passes": Variant(rotates=True, passes=2),
}


class Distillation(Callback):
    """Cross-entropy plus the squared difference to the features of the frozen backbone."""

    def __init__(self, weight: float, layers: tuple[int, ...]):
        self.weight, self.layers = weight, layers

    def forward(self, backbone: Backbone, adapter: Adapter, head: Head, tokens: Tensor) -> Tensor:
        states = list(backbone.states(tokens, self.layers, adapter.active()))
        frozen = deep_features(backbone, tokens, self.layers, 0, None)
        self.distance = (extract_features(states, "pooled") - frozen).square().mean()
        return backbone.pool(states[-1])

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(batch.outputs, batch.targets) + self.weight * self.distance


def main() -> None:
    """Print one row per variant: accuracy with one view and with two, mean over class orders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--source", default="cifar10")
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--orders", type=int, nargs="+", default=[10, 11, 12])
    parser.add_argument("--learned", type=int, default=100, help="images per class")
    parser.add_argument("--tested", type=int, default=100, help="other images per class")
    options = parser.parse_args()
    backbone = Backbone.load(options.backbone, options.image_size)
    train_set = load(options.source, options.data).train
    labels, classes = train_set.labels, int(train_set.labels.max()) + 1
    print("| adapter | one view (%) | two views (%) |\n| --- | ---: | ---: |")
    for name, variant in VARIANTS.items():
        found = []
        for order in options.orders:
            own = [(labels == label).nonzero().flatten() for label in range(classes)]
            own = [rows[permutation(len(rows), order, "study", i)] for i, rows in enumerate(own)]
            learned = torch.cat([rows[: options.learned] for rows in own])
            tested = torch.cat([rows[options.learned :][: options.tested] for rows in own])
            first = permutation(classes, order, "split")[: classes // options.tasks]
            rows = learned[torch.isin(labels[learned], first)]
            column = torch.zeros(classes, dtype=torch.long)
            column[first] = torch.arange(len(first))
            images = torch.as_tensor(train_set.images[rows])
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                adapter = train_adapter(backbone, images, column[labels[rows]], variant, order)
                parts = [
                    features(backbone, torch.as_tensor(train_set.images[part]), adapter)
                    for part in (learned, tested)
                ]
            found.append(accuracies(*parts, labels[learned], labels[tested]))
        cells = [f"{100 * value:.1f}" for value in torch.tensor(found).mean(0).tolist()]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def train_adapter(
    backbone: Backbone, images: Tensor, targets: Tensor, variant: Variant, seed: int
) -> Adapter | None:
    """Train an adapter as the library does, except for the variant."""
    if not variant.passes:
        return None
    settings = Settings(seed=seed, augment="crop").resolved(backbone.depth)
    epochs = round(variant.passes * settings.epochs_for(len(images)))
    settings = replace(settings, epochs=epochs)
    adapter = Adapter.new(backbone, settings.rank, 0, generator(seed, "task", 0))
    kind = RotatedTrainingSet if variant.rotates else TrainingSet
    outputs = (int(targets.max()) + 1) * (QUARTERS if variant.rotates else 1)
    callback = Distillation(variant.distillation, settings.classifier.layers)
    trained, _ = train(
        backbone,
        adapter,
        Head.linear(tuple(range(outputs)), backbone),
        kind(TokenCache(backbone, images, 0), targets, "first task", 0),
        settings,
        callback=callback if variant.distillation else Callback(),
    )
    return trained


def features(backbone: Backbone, images: Tensor, adapter: Adapter | None) -> list[Tensor]:
    """Return the features of images and of their flips."""
    layers = Settings().resolved(backbone.depth).classifier.layers
    return [
        deep_task_features(TokenCache(backbone, view, 0), layers, adapter).float()
        for view in (images, images.flip(-1))
    ]


def accuracies(
    learned: list[Tensor], tested: list[Tensor], targets: Tensor, correct: Tensor
) -> list[float]:
    """Return the accuracy with one view and with two."""
    classifier = GaussianClassifier(Settings().classifier)
    none = torch.arange(0)
    expert = classifier.fit(
        learned[0], targets, torch.Generator(), flipped=learned[1], held_out=none
    )
    classifier = classifier.with_expert(0, expert)
    plain, flipped = (classifier.class_logits(view).cpu() for view in tested)
    return [
        float((logits.argmax(1) == correct).float().mean()) for logits in (plain, plain + flipped)
    ]


if __name__ == "__main__":
    main()
