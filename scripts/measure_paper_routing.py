"""Measure how often the paper's autoencoders select the correct task, on all images.

    python scripts/measure_paper_routing.py --backbone FOLDER --cifar100 FOLDER

The three splits of Table 1: CIFAR-10 in 5 tasks, CIFAR-100 in 10 and 20. The autoencoders read
only the embedding output, so no adapter is trained; embeddings are computed once and cached. Each
measurement is one combination of

- split and seed (the class order of the experiments of the same names);
- form: `linear` (the paper) or `sigmoid` (the authors' script);
- tokens: `mean` over the hidden dimension, or `flat`;
- epochs: 10 as in the paper; 20 where CIFAR-100 has half of its images, so that the number of steps
  is the paper's; 100 to show the effect of longer training;
- start: `shared`, all autoencoders of a seed start from the same weights and see their data in the
  same order (this library), or `own`, each starts from its own (the script); `closed`, the
  minimum of the loss of the linear form in closed form, that is, training without end;
- views: `plain` images, or `crops`, random resized crops and flips normalised with the mean and
  standard deviation of CIFAR, a new view in each epoch (the script).

Other settings are the paper's: latent dimension 1, batches of 128, AdamW with lr 5e-3; the
weight decay is 0.01 for plain views and 0.05 for crops.

The record is written after every measurement; measurements that it contains are not repeated.
`--table` prints it as the table of docs/fidelity.md. `dead` counts autoencoders whose latent is 0
for all images that were tried: their ReLU passes no gradient, and they output a constant.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from remembering import __version__
from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings
from remembering.data.augmentation import augmented
from remembering.data.sources import load
from remembering.data.sources.base import LabelledImages, Source
from remembering.inference.token_cache import batches
from remembering.routing.autoencoder import AutoencoderRouter
from remembering.routing.reconstruction import ReconstructionRouter
from remembering.routing.subspace import SubspaceRouter
from remembering.runtime.distributed import SINGLE_PROCESS
from remembering.runtime.files import write_atomic
from remembering.runtime.seeding import generator, permutation

SPLITS = {
    "cifar10-5": ("cifar10", 5),
    "cifar100-10": ("cifar100", 10),
    "cifar100-20": ("cifar100", 20),
}
COLUMNS = ("split", "tokens", "views", "form", "start", "epochs")
UNITS = {"sample": 1, "group_32": 32, "group_128": 128, "task": 10**9}
VIEWS = 10
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
EVALUATED_ROWS = 64


@dataclass(frozen=True)
class Case:
    """One measurement."""

    split: str
    seed: int
    form: Literal["linear", "sigmoid"]
    tokens: Literal["mean", "flat"]
    start: Literal["shared", "own", "closed"]
    views: Literal["plain", "crops"]
    epochs: int


PAPER: tuple[Any, Any] = ("linear", "shared")
SCRIPT: tuple[Any, Any] = ("sigmoid", "own")
CROSSED: tuple[tuple[Any, Any], ...] = (("linear", "own"), ("sigmoid", "shared"))
CLOSED: tuple[Any, Any] = ("linear", "closed")
CIFAR_100 = ("cifar100-10", "cifar100-20")


def cases(seeds: list[int]) -> Iterator[Case]:
    """Iterate over all measurements, the most important first."""
    every = (PAPER, SCRIPT, *CROSSED)
    plan: list[tuple[Any, Any, tuple[tuple[Any, Any], ...], Any, int]] = [
        ("mean", "plain", every, SPLITS, 10),
        ("mean", "plain", every, CIFAR_100, 20),
        ("mean", "plain", (CLOSED,), SPLITS, 0),
        ("mean", "plain", (PAPER, SCRIPT), SPLITS, 100),
        ("flat", "plain", (PAPER, SCRIPT), CIFAR_100, 20),
        ("flat", "plain", (PAPER, SCRIPT), ("cifar10-5",), 10),
        ("mean", "crops", every, ("cifar10-5",), 10),
        ("mean", "crops", every, CIFAR_100, 20),
        ("flat", "crops", (SCRIPT,), CIFAR_100, 20),  # the script flattens CIFAR-100
    ]
    for tokens, views, forms, splits, epochs in plan:
        for seed in seeds:
            for split in splits:
                for form, start in forms:
                    yield Case(split, seed, form, tokens, start, views, epochs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--backbone",
        default="WinKawaks/vit-tiny-patch16-224",
        help="folder or hub name of a ViT-Ti/16",
    )
    parser.add_argument("--cifar100", help="folder with CIFAR-100 in its hub layout")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tokens", default="mean,flat")
    parser.add_argument("--views", default="plain,crops")
    parser.add_argument("--cache", type=Path, default=Path("runs/paper-routing"))
    parser.add_argument("--out", type=Path, default=Path("results/paper-routing.json.gz"))
    parser.add_argument("--table", action="store_true", help="print the record as Markdown")
    options = parser.parse_args()
    if options.table:
        print(table(read_record(options.out)), end="")
        return
    measure = Measurement(options)
    for case in cases([int(seed) for seed in options.seeds.split(",")]):
        if case.tokens in options.tokens.split(",") and case.views in options.views.split(","):
            measure.run(case)


def read_record(path: Path) -> dict[str, Any]:
    """Return the record of earlier measurements."""
    record: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return record


def table(record: dict[str, Any]) -> str:
    """Return the record as a Markdown table: mean ± sample deviation over seeds, in percent."""
    lines = [
        "| " + " | ".join([*COLUMNS, "seeds", *UNITS, "dead"]) + " |",
        "| --- " * (len(COLUMNS) - 1) + "| ---: " * (len(UNITS) + 3) + "|",
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in record["measurements"]:
        case = row["case"]
        key = tuple(case[name] for name in COLUMNS)
        groups.setdefault(key, []).append(row)
    order = list(SPLITS)
    for key, rows in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0])):
        cells = [_percent([row["routing_accuracy"][unit] for row in rows]) for unit in UNITS]
        tasks = SPLITS[key[0]][1] * len(rows)
        dead = f"{sum(row['dead_latents'] for row in rows)} of {tasks}"
        lines.append("| " + " | ".join([*map(str, key), str(len(rows)), *cells, dead]) + " |")
    return "\n".join(lines) + "\n"


def _percent(values: list[float]) -> str:
    mean = f"{100 * statistics.mean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean


class Measurement:
    """Embeds the images, fits the autoencoders and writes the record."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.backbones = {"plain": Backbone.load(options.backbone, options.image_size)}
        self.backbones["crops"] = Backbone.load(options.backbone, options.image_size)
        preprocessing = self.backbones["crops"].preprocessing
        self.backbones["crops"].preprocessing = replace(
            preprocessing, mean=CIFAR_MEAN, std=CIFAR_STD
        )
        _check_means(self.backbones["crops"])
        self.sources: dict[str, Source] = {}
        self.record: dict[str, Any] = {"images": {}, "measurements": []}
        if options.out.exists():
            self.record = read_record(options.out)
        plain = self.backbones["plain"]
        self.record |= {
            "script": "scripts/measure_paper_routing.py",
            "backbone": {"depth": plain.depth, "dim": plain.dim, "image_size": options.image_size},
            "versions": {
                "remembering": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }

    def run(self, case: Case) -> None:
        """Measure one case, unless the record contains it."""
        if any(row["case"] == vars(case) for row in self.record["measurements"]):
            return
        started = time.perf_counter()
        source, router = self._source(case), _router(case)
        tasks = _tasks(source, case)
        for number, classes in enumerate(tasks):
            rows = torch.isin(source.train.labels, classes).nonzero().flatten()
            features = self._train_features(case, rows)
            purpose = ("router",) if case.start == "shared" else ("router", number)
            rng = generator(case.seed, *purpose)
            every = torch.arange(len(features))
            expert = router.fit_expert(features, every, rng, SINGLE_PROCESS)
            router = router.with_expert(number, expert)
            del features
        routed, dead = self._evaluate(case, router, tasks)
        row = {
            "case": vars(case),
            "settings": {"lr": router.settings.lr, "weight_decay": router.settings.weight_decay},
            "routing_accuracy": {u: sum(v) / len(v) for u, v in routed.items()},
            "tasks_correct": [share > 0.5 for share in routed["task"]],
            "by_task": {unit: [round(v, 4) for v in values] for unit, values in routed.items()},
            "dead_latents": dead,
            "seconds": round(time.perf_counter() - started, 1),
        }
        self.record["measurements"].append(row)
        text = json.dumps(self.record, indent=1) + "\n"
        self.options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.options.out, gzip.compress(text.encode(), mtime=0))
        shown = " ".join(f"{u} {100 * v:5.1f}" for u, v in row["routing_accuracy"].items())
        print(
            f"{' '.join(map(str, vars(case).values())):45} {shown}  {row['seconds']} s", flush=True
        )

    def _source(self, case: Case) -> Source:
        name = SPLITS[case.split][0]
        if name not in self.sources:
            folder = self.options.cifar100 if name == "cifar100" else None
            source = load(name, Path(folder) if folder else None)
            self.sources[name] = source
            self.record["images"][name] = {"train": len(source.train), "test": len(source.test)}
        return self.sources[name]

    def _train_features(self, case: Case, rows: Tensor) -> Tensor:
        """Return σ(V) of one task's training images; all views of all epochs if they are crops."""
        if case.views == "plain":
            return self._cached(case, "train", 0)[rows.numpy()]
        if case.tokens == "mean":
            views = [self._cached(case, "train", epoch)[rows.numpy()] for epoch in range(VIEWS)]
            return torch.cat(views)
        images = self._source(case).train.images
        return torch.cat([self._embed(case, images, rows, epoch) for epoch in range(VIEWS)])

    def _embed(self, case: Case, images: Any, rows: Tensor, epoch: int | None) -> Tensor:
        """Return σ(V), float32, of some images; `epoch` selects the random view."""
        parts = []
        for index in rows.split(64):
            batch = images[index]
            if epoch is not None:
                batch = augmented(batch, "resized_crop", index, 0, 0, epoch)
            parts.append(_features(self.backbones[case.views], case.tokens, batch))
        return torch.cat(parts)

    def _cached(self, case: Case, part: Literal["train", "test"], epoch: int) -> _Rows:
        """Return the features of a whole data set, from a file that is made on first use."""
        name = SPLITS[case.split][0]
        data: LabelledImages = getattr(self._source(case), part)
        view = epoch if case.views == "crops" and part == "train" else None
        stem = f"{name}-{part}-{case.tokens}-{case.views}" + ("" if view is None else f"-{view}")
        path = self.options.cache / f"{stem}-{self.options.image_size}.npy"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".unfinished.npy")
            file: Any = None
            for index in batches(len(data)):
                rows = self._embed(case, data.images, index, view).numpy()
                if file is None:
                    shape = (len(data), rows.shape[1])
                    kind = np.float32 if case.tokens == "mean" else np.float16
                    file = np.lib.format.open_memmap(unfinished, "w+", kind, shape)
                file[index.numpy()] = rows
            file.flush()
            unfinished.replace(path)
        return _Rows(np.load(path, mmap_mode="r"))

    @torch.inference_mode()
    def _evaluate(
        self, case: Case, router: ReconstructionRouter, tasks: list[Tensor]
    ) -> tuple[dict[str, list[float]], int]:
        """Return routing accuracy by unit and task, and how many experts have a dead latent."""
        test, labels = self._cached(case, "test", 0), self._source(case).test.labels
        routed: dict[str, list[float]] = {unit: [] for unit in UNITS}
        alive = torch.zeros(len(tasks), dtype=torch.bool)
        for number, classes in enumerate(tasks):
            rows = torch.isin(labels, classes).nonzero().flatten()
            rows = rows[permutation(len(rows), case.seed, "split test", number)]
            parts = [test[part.numpy()] for part in rows.split(EVALUATED_ROWS)]
            scores = torch.cat([router.scores(part) for part in parts])
            for i, expert in router.experts.items():
                alive[i] |= bool((router.encode(parts[0], expert) != 0).any())
            for unit, size in UNITS.items():
                correct = [
                    len(group) * bool(group.mean(0).argmin() == number)
                    for group in scores.split(min(size, len(scores)))
                ]
                routed[unit].append(sum(correct) / len(scores))
        return routed, int((~alive).sum())


@dataclass(frozen=True)
class _Rows:
    """Rows of a file as float32 tensors."""

    file: Any

    def __getitem__(self, index: Any) -> Tensor:
        return torch.from_numpy(self.file[index].astype(np.float32))


def _router(case: Case) -> ReconstructionRouter:
    crops = case.views == "crops"
    closed = case.start == "closed"
    settings = RouterSettings(
        "subspace" if closed else "autoencoder",
        layers=(0,),
        tokens=case.tokens,
        form=case.form,
        weight_decay=0.05 if crops else 0.01,
        epochs=max(1, case.epochs // VIEWS if crops else case.epochs),  # all views are passed
    )
    return SubspaceRouter(settings) if closed else AutoencoderRouter(settings)


def _tasks(source: Source, case: Case) -> list[Tensor]:
    """Return the classes of each task, as `remembering.data.streams.split` deals them."""
    count = SPLITS[case.split][1]
    order = permutation(len(source.classes), case.seed, "split")
    return list(order.split(len(source.classes) // count))


@torch.inference_mode()
def _features(backbone: Backbone, tokens: Literal["mean", "flat"], images: Any) -> Tensor:
    """Return σ(V) of a batch, as the router of the library computes it."""
    if tokens == "flat":
        return backbone.embed(images).flatten(1).sigmoid().clone()
    # The embedding is linear, so the mean over its outputs is an embedding with one output.
    pixels = backbone.preprocessing.normalise(backbone.prepare(images))
    embeddings = backbone.embeddings
    projection, position = embeddings.patch_embeddings.projection, embeddings.position_embeddings
    weight, bias = projection.weight.mean(0, keepdim=True), projection.bias.mean(0, keepdim=True)
    patches = F.conv2d(pixels, weight, bias, projection.stride).flatten(1)
    cls = embeddings.cls_token.mean().expand(len(patches), 1)
    return (torch.cat([cls, patches], dim=1) + position.mean(2)).sigmoid().clone()


def _check_means(backbone: Backbone) -> None:
    """Raise unless the fast token means are those of the router."""
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = _router(Case("cifar10-5", 0, "linear", "mean", "own", "plain", 1)).features(
            [backbone.embed(images)]
        )
    torch.testing.assert_close(_features(backbone, "mean", images), expected, rtol=0, atol=1e-6)


if __name__ == "__main__":
    main()
