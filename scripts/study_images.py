"""How many images a class needs, and how long learning takes: the tables of docs/planning.md.

    python scripts/study_images.py --backbone FOLDER --image-size 112 --data FOLDER_OF_CIFAR100
    python scripts/study_images.py --time

The first command learns CIFAR-100 classes in four tasks of five, from a growing number of training
images per class, and answers other training images one by one; images of five more classes are
unknown. Test images are not used. The second command measures one pass of an image through
backbones of several sizes with random weights, in CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from torch import Tensor

from remembering import RememberingTransformer, Settings, Task
from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.data.sources import Source, load
from remembering.data.streams.split import split
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import TrainingSet, train
from remembering.runtime.seeding import permutation

SEED = 20  # a class order that no result uses
SIZES = (5, 10, 25, 50, 100)
HELD_OUT = 30
SMALL = {"hidden_size": 384, "num_attention_heads": 6, "patch_size": 14, "image_size": 224}
BASE = {"hidden_size": 768, "num_attention_heads": 12, "patch_size": 14, "image_size": 224}
BACKBONES: dict[str, tuple[Callable[[], transformers.PreTrainedModel], int]] = {
    "ViT-Ti/16, 112 px": (
        lambda: transformers.ViTModel(
            transformers.ViTConfig(hidden_size=192, num_attention_heads=3, intermediate_size=768)
        ),
        112,
    ),
    "DINOv2-small, 112 px": (
        lambda: transformers.Dinov2Model(transformers.Dinov2Config(**SMALL)),
        112,
    ),
    "DINOv2-small, 224 px": (
        lambda: transformers.Dinov2Model(transformers.Dinov2Config(**SMALL)),
        224,
    ),
    "DINOv2-base, 224 px": (
        lambda: transformers.Dinov2Model(transformers.Dinov2Config(**BASE)),
        224,
    ),
}


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="bundled")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-100")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--time", action="store_true", help="measure passes instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.time:
        _measure_passes()
        return
    backbone = Backbone.load(options.backbone, options.image_size)
    source = load("cifar100", options.data)
    print("| images per class | accuracy, no training | accuracy | false alarms at 5 % | unknown |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for size in options.sizes:
        stream = split(_held_out(source, size), [5] * 5, SEED)
        *known, unknown = stream.tasks
        cells = [str(size)]
        for settings in (Settings(epochs=0), Settings()):
            model = RememberingTransformer(backbone, settings)
            for data in known:
                model.learn(data.train)
            tests = [data.test for data in known]
            evaluation = model.evaluate(tests, unknown=unknown.test.images)
            cells.append(f"{100 * evaluation.accuracy:.1f}")
        detected = evaluation.detected or 0
        cells += [f"{100 * evaluation.false_alarms:.1f}", f"{100 * detected:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def _held_out(source: Source, per_class: int) -> Source:
    """Return some training images of each class, and others of the training images as test."""
    train, test = [], []
    for label in range(len(source.classes)):
        members = (source.train.labels == label).nonzero().flatten()
        order = members[permutation(len(members), SEED, "images", label)]
        test.append(order[:HELD_OUT])
        train.append(order[HELD_OUT : HELD_OUT + per_class])
    parts = (source.train.take(torch.cat(rows).sort().values) for rows in (train, test))
    return Source(source.name, *parts, source.classes)


def _measure_passes() -> None:
    print("| backbone | forward (s per 1,000 images) | training (s per 1,000 images) |")
    print("| --- | ---: | ---: |")
    for name, (make, size) in BACKBONES.items():
        with tempfile.TemporaryDirectory() as folder:
            make().save_pretrained(folder)
            backbone = Backbone.load(folder, size)
        images = torch.randint(0, 256, (8, 3, size, size), dtype=torch.uint8)
        forward = _best(lambda: backbone.run(backbone.embed(images)), 3)  # noqa: B023
        training = _best(lambda: _train(backbone, images), 2)  # noqa: B023
        scale = 1000 / len(images)
        print(f"| {name} | {scale * forward:.0f} | {scale * training:.0f} |", flush=True)


def _train(backbone: Backbone, images: Tensor) -> None:
    settings = replace(Settings(epochs=1, augment="crop"), batch_size=len(images))
    task = Task("images", images, [0, 1] * (len(images) // 2))
    adapter = Adapter.new(backbone, settings.rank, 0, torch.Generator())
    training_set = TrainingSet(TokenCache(backbone, task.images, 0), task.targets, "images", 0, "")
    train(backbone, adapter, Head.linear(task.classes, backbone), training_set, settings)


def _best(function: Callable[[], object], turns: int) -> float:
    """Return the CPU seconds of the fastest turn."""
    seconds = []
    with torch.inference_mode(False):
        for _ in range(turns):
            start = time.process_time()
            function()
            seconds.append(time.process_time() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
