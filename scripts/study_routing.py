"""What the default router was chosen by: single images of held-out training data.

    python scripts/study_routing.py --backbone FOLDER --data FOLDER --part features

CIFAR-100 in ten tasks in a class order that no result uses (seed 10): 100 training images a class
are learned, 30 other training images a class are asked about. Test images are not opened. Parts:
`features` tries layers of the frozen backbone; `feature_adapter` (half an hour) trains feature_adapter of several ranks
and lengths; `views` goes on with the default feature_adapter: the mirror image, and feature vectors that are
kept to fit_logit_correction boundaries. Figures are in docs/routing.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings, Settings
from remembering.data.sources import load
from remembering.inference.encoding import flip_horizontally
from remembering.inference.token_cache import TokenCache, batches
from remembering.learning.training import TrainingSet, train
from remembering.routing.gaussian import GaussianRouter
from remembering.runtime.seeding import generator, permutation

SEED, TASKS, PER_TASK, LEARNED, ASKED = 10, 10, 10, 100, 30
DEFAULT = (4, 6, 8, 10, 12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--image-size", type=int, default=112)
    parser.add_argument("--part", choices=("features", "eyes", "views"), required=True)
    arguments = parser.parse_args()
    backbone = Backbone.load(arguments.backbone, arguments.image_size)
    learn, ask = _images(arguments.data)
    study = {"features": _study_features, "eyes": _study_feature_adapter, "views": _study_views}
    study[arguments.part](backbone, learn, ask)


def _images(data: Path) -> tuple[Tensor, Tensor]:
    """Images to learn and to ask about, class after class, in the order of the stream."""
    source = load("cifar100", data)
    images = torch.as_tensor(source.train.images)
    learn, ask = [], []
    for label in permutation(TASKS * PER_TASK, SEED, "split").tolist():
        members = (source.train.labels == label).nonzero().flatten()
        members = members[permutation(len(members), SEED, "limit", "train", label)]
        learn.append(images[members[:LEARNED]])
        ask.append(images[members[LEARNED : LEARNED + ASKED]])
    return torch.cat(learn), torch.cat(ask)


@torch.inference_mode()
def _states(backbone: Backbone, images: Tensor, feature_adapter: Adapter | None = None) -> Tensor:
    """CLS and mean token, normalised, of every state: (n, depth + 1, 2, dim)."""
    active = feature_adapter.active() if feature_adapter else None
    parts = []
    for index in batches(len(images)):
        tokens = backbone.embed(images[index])
        states = backbone.states(tokens, range(backbone.depth + 1), active)
        both = [torch.stack([s[:, 0], s[:, 1:].mean(1)], dim=1) for s in states]
        parts.append(F.layer_norm(torch.stack(both, dim=1), (backbone.dim,)))
    return torch.cat(parts)


def _accuracy(learn: Tensor, ask: Tensor, replay: int = 0) -> tuple[float, float]:
    """Shares of classes and of tasks that are right."""
    router = GaussianRouter(RouterSettings(replay=replay))
    targets = torch.arange(PER_TASK).repeat_interleave(LEARNED)
    for number, features in enumerate(learn.flatten(1).chunk(TASKS)):
        router.add(number, router.fit(features, targets, generator(SEED)))
    logits = router.class_logits(ask.flatten(1))
    wanted = torch.arange(TASKS * PER_TASK).repeat_interleave(ASKED)
    tasks = router.score(ask.flatten(1)).argmin(1)
    right = logits.argmax(1) == wanted, tasks == wanted // PER_TASK
    return float(right[0].float().mean()), float(right[1].float().mean())


def _print(name: str, learn: Tensor, ask: Tensor, replay: int = 0) -> None:
    accuracy, routing = _accuracy(learn, ask, replay)
    width = learn[0].numel()
    print(
        f"| {name} | {width:,} | {100 * accuracy:.1f} | {100 * routing:.1f} |",
        flush=True,
    )


def _study_features(backbone: Backbone, learn: Tensor, ask: Tensor) -> None:
    a, b = _states(backbone, learn), _states(backbone, ask)
    print("| frozen features | width | classes right (%) | tasks right (%) |")
    print("| --- | ---: | ---: | ---: |")
    sets: list[Sequence[int]] = [(0,)]
    sets += [RouterSettings().resolved(k).layers for k in (2, 4, 6, 8, 10, 12)]
    sets += [(10,), (12,), (6, 10, 12)]
    for layers in sets:
        _print(f"layers {', '.join(map(str, layers))}", a[:, layers], b[:, layers])
    _print("layers 1 to 12", a[:, 1:], b[:, 1:])
    _print("layers 4 to 12, CLS only", a[:, DEFAULT, 0], b[:, DEFAULT, 0])
    _print("layers 4 to 12, mean only", a[:, DEFAULT, 1], b[:, DEFAULT, 1])
    for columns in (2000, 5000):
        _print_ranpac(columns, a[:, DEFAULT].flatten(1), b[:, DEFAULT].flatten(1))


def _print_ranpac(columns: int, learn: Tensor, ask: Tensor) -> None:
    """Random projection, ReLU, ridge (McDonnell et al., 2023), the best of five ridges."""
    wanted = torch.arange(TASKS * PER_TASK).repeat_interleave(ASKED)
    targets = torch.arange(TASKS * PER_TASK).repeat_interleave(LEARNED)
    projection = torch.randn(learn.shape[1], columns, generator=generator(SEED, "projection"))
    projection /= learn.shape[1] ** 0.5
    h, g = (learn @ projection).relu(), (ask @ projection).relu()
    gram, sums = h.mT @ h, h.mT @ F.one_hot(targets).float()
    best = 0.0
    for ridge in (1e1, 1e2, 1e3, 1e4, 1e5):
        weight = torch.linalg.solve(gram + ridge * torch.eye(columns), sums)
        best = max(best, float(((g @ weight).argmax(1) == wanted).float().mean()))
    print(f"| random projection of these, ridge | {columns:,} | {100 * best:.1f} | – |")


def _study_feature_adapter(backbone: Backbone, learn: Tensor, ask: Tensor) -> None:
    print("| feature_adapter | width | classes right (%) | tasks right (%) |")
    print("| --- | ---: | ---: | ---: |")
    for rank, epochs in ((1, 2), (1, 6), (8, 6), (8, 15)):
        feature_adapter = _feature_adapter(backbone, learn, rank, epochs)
        a, b = (_states(backbone, images, feature_adapter)[:, DEFAULT] for images in (learn, ask))
        _print(f"rank {rank}, {epochs} epochs of the first task", a, b)


def _feature_adapter(backbone: Backbone, learn: Tensor, rank: int, epochs: int) -> Adapter:
    """An adapter trained on the first task."""
    settings = Settings(rank=rank, epochs=epochs, batch_size=32, seed=SEED)
    first = learn[: PER_TASK * LEARNED]
    targets = torch.arange(PER_TASK).repeat_interleave(LEARNED)
    training_set = TrainingSet(
        TokenCache(backbone, first, 0).filled(), targets, "the first task", 0
    )
    adapter = Adapter.new(backbone, rank, 0, generator(SEED, "eyes"))
    head = Head.linear(tuple(range(PER_TASK)), backbone)
    return train(backbone, adapter, head, training_set, settings)[0]


def _study_views(backbone: Backbone, learn: Tensor, ask: Tensor) -> None:
    print(
        "| through feature_adapter of rank 8, 200 steps | width | classes right (%) | tasks right (%) |"
    )
    print("| --- | ---: | ---: | ---: |")
    feature_adapter = _feature_adapter(backbone, learn, 8, 7)
    a, b = (_states(backbone, images, feature_adapter)[:, DEFAULT] for images in (learn, ask))
    _print("the image", a, b)
    c, d = (
        _states(backbone, flip_horizontally(images), feature_adapter)[:, DEFAULT]
        for images in (learn, ask)
    )
    a, b = (a + c) / 2, (b + d) / 2
    _print("mean of the image and its mirror image", a, b)
    for replay in (64, 200, 512, 1000):
        _print(f"the same, {replay:,} feature vectors of each task kept", a, b, replay)


if __name__ == "__main__":
    main()
