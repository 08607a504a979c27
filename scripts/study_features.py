"""How the adapter of a first task should be trained: accuracy of the whole stream.

    python scripts/study_features.py --backbone FOLDER --image-size 112 --source cifar10 --tasks 5
    python scripts/study_features.py --backbone FOLDER --image-size 112 --source cifar100 --tasks 10 \
        --data FOLDER_OF_CIFAR100

An adapter is trained on the first task in several ways. Class Gaussians on its features then learn
the stream, as the library does, and classify other training images one by one. Only training
images are used, in class orders that no result uses.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.config import ClassifierSettings, Settings
from remembering.data.augmentation import augmented
from remembering.data.images import joined, subset
from remembering.data.sources import load
from remembering.inference.encoding import FlippedImages, deep_features, deep_task_features
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import Batch, Callback, TrainingSet, train
from remembering.routing.classifier import GaussianClassifier
from remembering.routing.features import extract_features
from remembering.runtime.seeding import generator, permutation


@dataclass(frozen=True)
class Variant:
    """One way to train the adapter.

    Attributes:
        passes: Image passes. 0: the frozen backbone.
        rotations: Whether images turned by 90, 180 and 270 degrees are further classes.
        distillation: Weight of the squared difference to the features of the frozen backbone.
        lr: Learning rate.
        rank: Rank of the adapter.
        mixed: Whether the head also reads the mean token.
    """

    passes: int = 3200
    rotations: bool = False
    distillation: float = 0.0
    lr: float = 1e-3
    rank: int = 8
    pooled_head: bool = False
    smoothing: float = 0.0
    views: int = 1
    consistency: float = 0.0


VARIANTS = {
    "frozen": Variant(passes=0),
    "default": Variant(),
    "distilled 0.3": Variant(distillation=0.3),
    "distilled 1": Variant(distillation=1.0),
    "rotations": Variant(rotations=True),
    "rotations, twice": Variant(rotations=True, passes=6400),
    "rotations, twice, distilled 0.3": Variant(rotations=True, passes=6400, distillation=0.3),
    "both views 0.3": Variant(distillation=0.3, views=2),
    "both views 1": Variant(distillation=1.0, views=2),
    "both views 3": Variant(distillation=3.0, views=2),
    "rotations, both views 1": Variant(rotations=True, distillation=1.0, views=2),
    "rotations, twice, both views 1": Variant(rotations=True, passes=6400, distillation=1.0, views=2),
    "consistency 1": Variant(consistency=1.0),
    "rotations, consistency 1": Variant(rotations=True, consistency=1.0),
    "lr 3e-4": Variant(lr=3e-4),
    "twice": Variant(passes=6400),
    "pooled head": Variant(pooled_head=True),
    "smoothing": Variant(smoothing=0.2),
}


class Objective(Callback):
    def __init__(self, variant: Variant, layers: tuple[int, ...]):
        self.variant, self.layers = variant, layers
        self.features: Tensor | None = None
        self.tokens: Tensor | None = None

    def forward(self, backbone: Backbone, adapter: Adapter, head: Head, tokens: Tensor) -> Tensor:
        states = list(
            backbone.states(tokens, self.layers, adapter.active(), start=adapter.first_layer)
        )
        self.features = extract_features(states, "pooled")
        self.target = None
        if self.variant.distillation:
            self.target = deep_features(backbone, tokens, self.layers, 0, None)
            if self.variant.views == 2:
                again = deep_features(backbone, self.flip(backbone, tokens), self.layers, 0, None)
                self.target = (self.target + again) / 2
        self.other = None
        if self.variant.consistency:
            flipped = self.flip(backbone, tokens)
            states2 = list(backbone.states(flipped, self.layers, adapter.active(), start=0))
            self.other = extract_features(states2, "pooled")
        if self.variant.pooled_head:
            both = self.features[:, -2 * backbone.dim :]
            return (both[:, : backbone.dim] + both[:, backbone.dim :]) / 2
        return backbone.pool(states[-1])

    def flip(self, backbone, tokens):
        """The tokens of the flipped images: embeddings are per patch, pixels are needed."""
        return self.cache_flipped

    def loss(self, batch: Batch) -> Tensor:
        loss = F.cross_entropy(
            batch.outputs, batch.targets, label_smoothing=self.variant.smoothing
        )
        if self.target is not None:
            loss = loss + self.variant.distillation * (self.features - self.target).square().mean()
        if self.other is not None:
            loss = loss + self.variant.consistency * (self.features - self.other).square().mean()
        return loss


def train_adapter(
    backbone: Backbone, images: Tensor, targets: Tensor, variant: Variant, seed: int
) -> Adapter | None:
    if not variant.passes:
        return None
    settings = Settings(seed=seed, rank=variant.rank, lr=variant.lr, augment="crop")
    settings = settings.resolved(backbone.depth)
    if variant.rotations:
        images = torch.cat([images.rot90(k, (-2, -1)) for k in range(4)])
        targets = torch.cat([4 * targets + k for k in range(4)])
    passes = max(variant.passes, 0)
    settings = replace(settings, epochs=max(1, round(passes / len(targets))))
    adapter = Adapter.new(backbone, settings.rank, 0, generator(seed, "task", 0))
    head = Head.linear(tuple(range(int(targets.max()) + 1)), backbone)
    cache = TokenCache(backbone, images, 0)
    objective = Objective(variant, settings.classifier.layers)

    class Both(TrainingSet):
        def tokens(self, index, settings, epoch):
            images = self.token_cache.images[index]
            images = augmented(images, "crop", index, settings.seed, self.number, epoch)
            if variant.views == 2 or variant.consistency:
                objective.cache_flipped = self.token_cache.compute(images.flip(-1))
            return self.token_cache.compute(images)

    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        adapter, _ = train(
            backbone, adapter, head, Both(cache, targets, "first", 0), settings,
            callback=objective,
        )
    return adapter


@torch.no_grad()
def features(backbone: Backbone, images: Tensor, adapter: Adapter | None) -> Tensor:
    layers = ClassifierSettings().resolved(backbone.depth).layers
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        parts = [
            deep_task_features(TokenCache(backbone, view, 0), layers, adapter)
            for view in (images, images.flip(-1))
        ]
    return torch.stack(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--source", default="cifar10")
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--orders", default="10,11,12")
    parser.add_argument("--variants", default=";".join(VARIANTS))
    parser.add_argument("--per-class", type=int, default=100)
    parser.add_argument("--tested", type=int, default=100)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    backbone = Backbone.load(options.backbone, options.image_size)
    source = load(options.source, options.data)
    labels = source.train.labels
    classes = len(source.classes)
    own = [(labels == c).nonzero().flatten() for c in range(classes)]
    for name in options.variants.split(";"):
        variant = VARIANTS[name]
        if options.source == "cifar100" and variant.passes:
            variant = replace(variant, passes=variant.passes * 12000 // 3200)
        row = []
        for order in map(int, options.orders.split(",")):
            rows = [x[permutation(len(x), order, "study", c)] for c, x in enumerate(own)]
            learned = torch.cat([x[: options.per_class] for x in rows])
            tested = torch.cat([x[options.per_class :][: options.tested] for x in rows])
            first = permutation(classes, order, "split")[: classes // options.tasks]
            mine = learned[torch.isin(labels[learned], first)]
            position = torch.full((classes,), -1).index_put((first,), torch.arange(len(first)))
            images = source.train.images
            adapter = train_adapter(
                backbone, images[mine], position[labels[mine]], variant, order
            )
            x = features(backbone, images[learned], adapter)
            z = features(backbone, images[tested], adapter)
            if options.keep:
                torch.save(
                    {"x": x.half(), "y": labels[learned], "z": z.half(), "t": labels[tested]},
                    options.keep / f"{options.source}-{order}-{name}.pt",
                )
            row.append(classify(x, labels[learned], z, labels[tested]))
        mean = torch.tensor(row).mean(0)
        print(json.dumps([name, row, [round(v, 2) for v in mean.tolist()]]), flush=True)


def classify(x: Tensor, y: Tensor, z: Tensor, t: Tensor) -> tuple[float, float]:
    """Return the accuracy with one view and with two."""
    classifier = GaussianClassifier(ClassifierSettings())
    expert = classifier.fit(x[0], y, torch.Generator(), flipped=x[1], held_out=torch.arange(0))
    classifier = classifier.with_expert(0, expert)
    plain, flipped = (classifier.class_logits(view) for view in z)
    return tuple(
        round(100 * float((logits.argmax(1) == t).float().mean()), 2)
        for logits in (plain, plain + flipped)
    )


if __name__ == "__main__":
    main()
