"""How much faster an epoch is when the tokens below the first adapted layer are kept.

    python benchmarks/token_cache.py [--backbone FOLDER] [--json FILE]

Adapters in the upper half of a ViT-Ti/16 at 112 pixels, images as PNG files, no augmentation. An
epoch with kept tokens and one without take turns; the best time of each counts, because whatever
else the machine does only adds to it. Both must have the same losses, step by step. Without a
backbone a random one of the same shape is used: the speed does not depend on the weights.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from common import random_vit
from PIL import Image
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.config import Settings
from remembering.data.images import ImageFiles
from remembering.inference.token_cache import BATCH_SIZE, TokenCache
from remembering.learning.training import Batch, Callback, TrainingSet, train
from remembering.runtime.seeding import generator

SIZE, CLASSES, GOAL = 112, 10, 1.7


class Losses(Callback):
    """Plain cross entropy, remembered."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        self.values.append(loss.item())
        return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", help="folder of a ViT-Ti/16; a random one if not given")
    parser.add_argument("--images", type=int, default=4 * BATCH)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        name = arguments.backbone or random_vit(Path(folder) / "backbone")
        backbone = Backbone.load(name, SIZE)
        images = _images(Path(folder), arguments.images)
        result = _measure(backbone, images, arguments.repeats)
    print(f"{arguments.images} images, adapters in layers {backbone.depth // 2 + 1} to ", end="")
    print(f"{backbone.depth} of {backbone.depth}, {torch.get_num_threads()} threads")
    print(f"to compute the tokens once  {result['encode_seconds']:7.2f} s")
    print(f"an epoch without them kept  {result['plain_seconds']:7.2f} s")
    print(f"an epoch with them kept     {result['kept_seconds']:7.2f} s")
    print(f"ratio                       {result['ratio']:7.2f}   (goal {GOAL}), same losses")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def _measure(backbone: Backbone, images: ImageFiles, repeats: int) -> dict[str, float]:
    plain = TokenCache(backbone, images, backbone.depth // 2)
    start = time.perf_counter()
    kept = plain.keep()
    encode_seconds = time.perf_counter() - start
    seconds: dict[str, list[float]] = {"plain": [], "kept": []}
    losses = []
    for _ in range(repeats):
        for kind, token_cache in (("plain", plain), ("kept", kept)):
            took, values = _epoch(token_cache)
            seconds[kind].append(took)
            losses.append(values)
    if any(values != losses[0] for values in losses):
        raise SystemExit(f"the losses differ: {losses[0]} and {losses[1]}")
    best = {kind: min(times) for kind, times in seconds.items()}
    return {
        "encode_seconds": encode_seconds,
        "plain_seconds": best["plain"],
        "kept_seconds": best["kept"],
        "ratio": best["plain"] / best["kept"],
        "goal": GOAL,
        "threads": torch.get_num_threads(),
    }


def _epoch(token_cache: TokenCache) -> tuple[float, list[float]]:
    """Seconds and losses of one epoch, from the same start each time."""
    backbone = token_cache.backbone
    settings = Settings(first_layer=token_cache.first_layer, epochs=1, batch_size=BATCH)
    adapter = Adapter.new(backbone, settings.rank, settings.first_layer, generator(0, "adapter"))
    head = Head.linear(tuple(range(CLASSES)), backbone)
    training_set = TrainingSet(
        token_cache, torch.arange(len(token_cache.images)) % CLASSES, "benchmark", 0
    )
    callback = Losses()
    start = time.perf_counter()
    train(backbone, adapter, head, training_set, settings, callback=callback)
    return time.perf_counter() - start, callback.values


def _images(folder: Path, count: int) -> ImageFiles:
    """Noise of the size of CIFAR's images."""
    pixels = torch.randint(0, 256, (count, 32, 32, 3), generator=generator(0, "images"))
    paths = [folder / f"{i}.png" for i in range(count)]
    for path, image in zip(paths, pixels.to(torch.uint8).numpy(), strict=True):
        Image.fromarray(image).save(path)
    return ImageFiles(paths)


if __name__ == "__main__":
    main()
