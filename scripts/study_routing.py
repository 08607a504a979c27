"""Study variants of the default router on single held-out training images.

    python scripts/study_routing.py --backbone FOLDER --data FOLDER --part features

CIFAR-100 in ten tasks in a class order that no result uses (seed 10): 100 training images per class
are learned, 30 other training images per class are predicted. Test images are not opened. Parts:
`features` compares layers of the frozen backbone; `feature-adapter` (half an hour) trains feature
adapters of several ranks and lengths; `views` continues with the default feature adapter: the flip,
and feature vectors kept to fit the logit correction. Results are in docs/routing.md.
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
from remembering.inference.token_cache import TokenCache, batches
from remembering.learning.training import TrainingSet, train
from remembering.routing.gaussian import GaussianRouter
from remembering.runtime.seeding import generator, permutation

SEED, TASKS, PER_TASK, LEARNED, HELD_OUT = 10, 10, 10, 100, 30
DEFAULT = (4, 6, 8, 10, 12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--image-size", type=int, default=112)
    parser.add_argument("--part", choices=tuple(PARTS), required=True)
    arguments = parser.parse_args()
    backbone = Backbone.load(arguments.backbone, arguments.image_size)
    learned, held_out = _images(arguments.data)
    PARTS[arguments.part](backbone, learned, held_out)


def _images(data: Path) -> tuple[Tensor, Tensor]:
    """Return training and held-out images, class after class, in the order of the stream."""
    source = load("cifar100", data)
    images = torch.as_tensor(source.train.images)
    learned, held_out = [], []
    for label in permutation(TASKS * PER_TASK, SEED, "split").tolist():
        members = (source.train.labels == label).nonzero().flatten()
        members = members[permutation(len(members), SEED, "limit", "train", label)]
        learned.append(images[members[:LEARNED]])
        held_out.append(images[members[LEARNED : LEARNED + HELD_OUT]])
    return torch.cat(learned), torch.cat(held_out)


@torch.inference_mode()
def _states(backbone: Backbone, images: Tensor, feature_adapter: Adapter | None = None) -> Tensor:
    """Return the normalised CLS and mean token of every state: (n, depth + 1, 2, dim)."""
    active = feature_adapter.active() if feature_adapter else None
    parts = []
    for index in batches(len(images)):
        tokens = backbone.embed(images[index])
        states = backbone.states(tokens, range(backbone.depth + 1), active)
        both = [torch.stack([s[:, 0], s[:, 1:].mean(1)], dim=1) for s in states]
        parts.append(F.layer_norm(torch.stack(both, dim=1), (backbone.dim,)))
    return torch.cat(parts)


def _accuracy(learned: Tensor, held_out: Tensor, replay: int = 0) -> tuple[float, float]:
    """Return the accuracy of classes and of tasks."""
    router = GaussianRouter(RouterSettings(replay=replay))
    targets = torch.arange(PER_TASK).repeat_interleave(LEARNED)
    for number, features in enumerate(learned.flatten(1).chunk(TASKS)):
        router = router.with_expert(number, router.fit(features, targets, generator(SEED)))
    logits = router.class_logits(held_out.flatten(1))
    expected = torch.arange(TASKS * PER_TASK).repeat_interleave(HELD_OUT)
    tasks = router.scores(held_out.flatten(1)).argmin(1)
    correct = logits.argmax(1) == expected, tasks == expected // PER_TASK
    return float(correct[0].float().mean()), float(correct[1].float().mean())


def _print(name: str, learned: Tensor, held_out: Tensor, replay: int = 0) -> None:
    accuracy, routing = _accuracy(learned, held_out, replay)
    width = learned[0].numel()
    print(
        f"| {name} | {width:,} | {100 * accuracy:.1f} | {100 * routing:.1f} |",
        flush=True,
    )


def _study_features(backbone: Backbone, learned: Tensor, held_out: Tensor) -> None:
    a, b = _states(backbone, learned), _states(backbone, held_out)
    print("| frozen features | width | accuracy (%) | routing accuracy (%) |")
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


def _print_ranpac(columns: int, learned: Tensor, held_out: Tensor) -> None:
    """Print the best of five ridge regressions on random features (McDonnell et al., 2023)."""
    expected = torch.arange(TASKS * PER_TASK).repeat_interleave(HELD_OUT)
    targets = torch.arange(TASKS * PER_TASK).repeat_interleave(LEARNED)
    projection = torch.randn(learned.shape[1], columns, generator=generator(SEED, "projection"))
    projection /= learned.shape[1] ** 0.5
    h, g = (learned @ projection).relu(), (held_out @ projection).relu()
    gram, sums = h.mT @ h, h.mT @ F.one_hot(targets).float()
    best = 0.0
    for ridge in (1e1, 1e2, 1e3, 1e4, 1e5):
        weight = torch.linalg.solve(gram + ridge * torch.eye(columns), sums)
        best = max(best, float(((g @ weight).argmax(1) == expected).float().mean()))
    print(f"| random projection of these, ridge | {columns:,} | {100 * best:.1f} | – |")


def _study_feature_adapter(backbone: Backbone, learned: Tensor, held_out: Tensor) -> None:
    print("| feature adapter | width | accuracy (%) | routing accuracy (%) |")
    print("| --- | ---: | ---: | ---: |")
    for rank, epochs in ((1, 2), (1, 6), (8, 6), (8, 15)):
        feature_adapter = _feature_adapter(backbone, learned, rank, epochs)
        a, b = (
            _states(backbone, images, feature_adapter)[:, DEFAULT] for images in (learned, held_out)
        )
        _print(f"rank {rank}, {epochs} epochs on the first task", a, b)


def _feature_adapter(backbone: Backbone, learned: Tensor, rank: int, epochs: int) -> Adapter:
    """Return an adapter trained on the first task."""
    settings = Settings(rank=rank, epochs=epochs, batch_size=32, seed=SEED)
    first = learned[: PER_TASK * LEARNED]
    targets = torch.arange(PER_TASK).repeat_interleave(LEARNED)
    training_set = TrainingSet(
        TokenCache(backbone, first, 0).filled(), targets, "the first task", 0
    )
    adapter = Adapter.new(backbone, rank, 0, generator(SEED, "eyes"))
    head = Head.linear(tuple(range(PER_TASK)), backbone)
    return train(backbone, adapter, head, training_set, settings)[0]


def _study_views(backbone: Backbone, learned: Tensor, held_out: Tensor) -> None:
    print("| feature adapter of rank 8, 200 steps | width | accuracy (%) | routing accuracy (%) |")
    print("| --- | ---: | ---: | ---: |")
    feature_adapter = _feature_adapter(backbone, learned, 8, 7)
    a, b = (
        _states(backbone, images, feature_adapter)[:, DEFAULT] for images in (learned, held_out)
    )
    _print("the image", a, b)
    c, d = (
        _states(backbone, images.flip(-1), feature_adapter)[:, DEFAULT]
        for images in (learned, held_out)
    )
    a, b = (a + c) / 2, (b + d) / 2
    _print("mean of the image and its flip", a, b)
    for replay in (64, 200, 512, 1000):
        _print(f"the same, {replay:,} feature vectors kept per task", a, b, replay)


PARTS = {
    "features": _study_features,
    "feature-adapter": _study_feature_adapter,
    "views": _study_views,
}

if __name__ == "__main__":
    main()
