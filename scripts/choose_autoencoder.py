"""How long to train the paper's autoencoders on small tasks, chosen on training images alone.

    python scripts/choose_autoencoder.py --backbone FOLDER

CIFAR-10 in five tasks, 100 training images a class, in class orders that no result uses (seeds 10
to 14). Routing of unit `task` is measured on training images that were not learned from: groups of
100 of one task, as large as its test set in the small runs. The test images are not opened.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings
from remembering.data.images import Images
from remembering.data.sources import load
from remembering.inference.token_cache import batches
from remembering.routing import Router, make_router
from remembering.runtime.seeding import generator, permutation

SEEDS = range(10, 15)
CLASSES, TASKS, LEARNED, HELD_OUT, GROUP = 10, 5, 100, 300, 100
BUDGETS = [(128, 50), (128, 400), (256, 400), (256, 1000), (256, 2000), (256, 4000), (256, 8000)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--image-size", type=int, default=112)
    arguments = parser.parse_args()
    backbone = Backbone.load(arguments.backbone, arguments.image_size)
    streams = [_stream(backbone, seed) for seed in SEEDS]
    print("start   batch  epochs  groups routed right  single images")
    for start in ("shared", "own"):
        for batch_size, epochs in BUDGETS:
            settings = RouterSettings("autoencoder", batch_size=batch_size, epochs=epochs)
            _print(start, settings, streams)
    _print("closed", RouterSettings("subspace"), streams)


def _print(
    start: str, settings: RouterSettings, streams: list[list[tuple[Tensor, Tensor]]]
) -> None:
    rates = [
        _routing(make_router(settings), seed, start == "shared", tasks)
        for seed, tasks in zip(SEEDS, streams, strict=True)
    ]
    groups, single = (sum(column) / len(rates) for column in zip(*rates, strict=True))
    budget = f"{settings.batch_size:6}  {settings.epochs:6}"
    print(f"{start:6} {budget}  {100 * groups:17.1f} %  {100 * single:11.1f} %", flush=True)


def _stream(backbone: Backbone, seed: int) -> list[tuple[Tensor, Tensor]]:
    """For each task, what a router sees of the images to learn and of those held out."""
    source = load("cifar10", None)
    router = make_router(RouterSettings("autoencoder").resolved(backbone.depth))
    order = permutation(CLASSES, seed, "split").tolist()
    tasks = []
    for group in (order[i : i + CLASSES // TASKS] for i in range(0, CLASSES, CLASSES // TASKS)):
        parts: tuple[list[Tensor], list[Tensor]] = ([], [])
        for label in group:
            members = (source.train.labels == label).nonzero().flatten()
            members = members[permutation(len(members), seed, "limit", "train", label)]
            chosen = members[:LEARNED], members[LEARNED : LEARNED + HELD_OUT]
            for part, index in zip(parts, chosen, strict=True):
                part.append(_features(backbone, router, source.train.images[index]))
        tasks.append((torch.cat(parts[0]), torch.cat(parts[1])))
    return tasks


@torch.inference_mode()
def _features(backbone: Backbone, router: Router, images: Images) -> Tensor:
    parts = [
        router.features([backbone.embed(images[index[0] : index[-1] + 1])])
        for index in batches(len(images))
    ]
    return torch.cat(parts)


def _routing(
    router: Router, seed: int, shared: bool, tasks: list[tuple[Tensor, Tensor]]
) -> tuple[float, float]:
    """Shares of groups, and of single images, for which the right task was chosen."""
    for number, (learned, _) in enumerate(tasks):
        targets = torch.arange(len(learned)) // LEARNED
        purpose = ("router",) if shared else ("router", number)
        router.add(number, router.fit(learned.clone(), targets, generator(seed, *purpose)))
    groups, single = [], []
    for number, (_, held_out) in enumerate(tasks):
        errors = router.score(held_out)
        single.append((errors.argmin(1) == number).float().mean().item())
        for draw in range(50):
            rows = permutation(len(errors), seed, "draw", number, draw)[:GROUP]
            groups.append(float(errors[rows].mean(0).argmin() == number))
    return sum(groups) / len(groups), sum(single) / len(single)


if __name__ == "__main__":
    main()
