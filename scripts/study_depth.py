"""Study the depth of the router: accuracy of single images against the number of layers run.

    python scripts/study_depth.py --backbone FOLDER --data FOLDER

Half of CIFAR-100 in five tasks of ten classes, in a class order that no result uses (seed 10): 50
training images per class are learned, 20 other training images per class are predicted. With the
router at depth k and adapters above it, an image runs through each layer once. The last rows need
several passes: the router reads the frozen backbone and adapters act in all layers, then with a
feature adapter, then with the flip (the default). Results are in docs/routing.md.
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
from remembering.inference.predict import layers_run, router_features
from remembering.model import RememberingTransformer
from remembering.runtime.seeding import permutation

TASKS, PER_TASK, LEARNED, HELD_OUT, EPOCHS = 5, 10, 50, 20, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--image-size", type=int, default=112)
    arguments = parser.parse_args()
    backbone = Backbone.load(arguments.backbone, arguments.image_size)
    tasks = list(_tasks(arguments.data))
    depth = backbone.depth
    print("| | layers run | accuracy (%) | accuracy, router alone (%) | routing accuracy (%) |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for k in range(0, depth + 1, 2):
        first = min(k, depth - 1)
        router = RouterSettings(layers=_up_to(k), feature_rank=0, flip=False)
        name = f"router up to layer {k}, adapters above"
        if k == depth:  # some layer needs an adapter; the last one is run again
            name = f"router up to layer {k}, adapters in the last layer"
        _print(name, backbone, Settings(first_layer=first, router=router), tasks)
    frozen = RouterSettings(feature_rank=0, flip=False)
    _print(
        f"router up to layer {depth}, adapters in all layers",
        backbone,
        Settings(router=frozen),
        tasks,
    )
    one = RouterSettings(flip=False)
    _print("the same, with feature adapter", backbone, Settings(router=one), tasks)
    _print("the same, with horizontal flip: the default", backbone, Settings(), tasks)


def _up_to(k: int) -> tuple[int, ...]:
    return RouterSettings().resolved(k).layers if k else (0,)


def _tasks(data: Path) -> Iterator[tuple[Task, Task]]:
    """Iterate over the training and held-out images of each task."""
    source = load("cifar100", data)
    images = torch.as_tensor(source.train.images)
    order = permutation(100, SEED, "split")[: TASKS * PER_TASK]
    for number, classes in enumerate(order.split(PER_TASK)):
        learned, held_out = [], []
        for label in classes.tolist():
            members = (source.train.labels == label).nonzero().flatten()
            members = members[permutation(len(members), SEED, "limit", "train", label)]
            learned.append(members[:LEARNED])
            held_out.append(members[LEARNED : LEARNED + HELD_OUT])
        train, test = (
            Task(f"task {number}", images[index], source.train.labels[index].tolist())
            for index in (torch.cat(learned), torch.cat(held_out))
        )
        yield train, test


def _print(
    name: str, backbone: Backbone, settings: Settings, tasks: list[tuple[Task, Task]]
) -> None:
    settings = Settings(
        first_layer=settings.first_layer, router=settings.router, epochs=EPOCHS, batch_size=32
    )
    model = RememberingTransformer(backbone, settings)
    for train, _ in tasks:
        model.learn(train)
    state = model.state
    accuracies, router_alone, routed = [], [], []
    columns = [label for record in model.tasks for label in record.classes]
    for position, (_, test) in enumerate(tasks):
        features = router_features(state, backbone, test.images)
        accuracies.append(accuracy(model.predict(test.images).labels, test.labels))
        best = state.router.class_logits(features).argmax(1).tolist()
        router_alone.append(accuracy([columns[i] for i in best], test.labels))
        correct: Tensor = state.router.scores(features).argmin(1) == position
        routed.append(float(correct.float().mean()))
    shares = (100 * sum(values) / len(values) for values in (accuracies, router_alone, routed))
    cells = " | ".join(f"{share:.1f}" for share in shares)
    print(f"| {name} | {layers_run(state, backbone.depth)} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
