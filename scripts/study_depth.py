"""Where to route: accuracy of single images against layers run for each, by the router's depth.

    python scripts/study_depth.py --backbone FOLDER --data FOLDER

Half of CIFAR-100 in five tasks of ten classes, in a class order that no result uses (seed 10): 50
training images a class are learned, 20 other training images a class are asked about. With the
router at depth k and adapters above it, an image runs through each layer once. Last come two
passes (the router reads the frozen backbone, adapters act in all layers) and the default. Figures
are in docs/routing.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from study_routing import SEED
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings, Settings
from remembering.data.sources import load
from remembering.data.task import Task
from remembering.evaluation.metrics import accuracy
from remembering.model import RememberingTransformer
from remembering.runtime.seeding import permutation

TASKS, PER_TASK, LEARNED, ASKED, EPOCHS = 5, 10, 50, 20, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--image-size", type=int, default=112)
    arguments = parser.parse_args()
    backbone = Backbone.load(arguments.backbone, arguments.image_size)
    tasks = list(_tasks(arguments.data))
    depth = backbone.depth
    print("| | layers run | right (%) | right, router alone (%) | right task (%) |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for k in range(0, depth + 1, 2):
        first = min(k, depth - 1)
        router = RouterSettings(layers=_up_to(k), feature_rank=0, flip=False)
        name = f"router up to layer {k}, adapters above"
        if k == depth:  # an adapter must act somewhere; the last layer is then run again
            name = f"router up to layer {k}, adapters in the last"
        _print(name, backbone, Settings(first_layer=first, router=router), tasks)
    frozen = RouterSettings(feature_rank=0, flip=False)
    _print(f"router up to layer {depth}, adapters in all", backbone, Settings(router=frozen), tasks)
    one = RouterSettings(flip=False)
    _print("the same, through eyes", backbone, Settings(router=one), tasks)
    _print("the same, and the mirror image: the default", backbone, Settings(), tasks)


def _up_to(k: int) -> tuple[int, ...]:
    return RouterSettings().resolved(k).layers if k else (0,)


def _tasks(data: Path) -> Iterator[tuple[Task, Task]]:
    """What is learned and what is asked about, task by task."""
    source = load("cifar100", data)
    images = torch.as_tensor(source.train.images)
    order = permutation(100, SEED, "split")[: TASKS * PER_TASK]
    for number, classes in enumerate(order.split(PER_TASK)):
        learn, ask = [], []
        for label in classes.tolist():
            members = (source.train.labels == label).nonzero().flatten()
            members = members[permutation(len(members), SEED, "limit", "train", label)]
            learn.append(members[:LEARNED])
            ask.append(members[LEARNED : LEARNED + ASKED])
        yield tuple(
            Task(f"task {number}", images[index], source.train.labels[index].tolist())
            for index in (torch.cat(learn), torch.cat(ask))
        )


def _print(
    name: str, backbone: Backbone, settings: Settings, tasks: list[tuple[Task, Task]]
) -> None:
    settings = Settings(
        first_layer=settings.first_layer, router=settings.router, epochs=EPOCHS, batch_size=32
    )
    model = RememberingTransformer(backbone, settings)
    for learn, _ in tasks:
        model.learn(learn)
    right, alone, routed = [], [], []
    columns = [label for record in model.tasks for label in record.classes]
    for position, (_, ask) in enumerate(tasks):
        features = model.router_features(ask.images)
        right.append(accuracy(model.predict(ask.images).labels, ask.labels))
        said = model.router.class_logits(features).argmax(1).tolist()
        alone.append(accuracy([columns[i] for i in said], ask.labels))
        chosen: Tensor = model.router.score(features).argmin(1) == position
        routed.append(float(chosen.float().mean()))
    shares = (100 * sum(values) / len(values) for values in (right, alone, routed))
    cells = " | ".join(f"{share:.1f}" for share in shares)
    print(f"| {name} | {model.layers_run} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
