"""What a task costs when there are many: `python benchmarks/many_tasks.py --tasks 1000`.

Tasks are small: two classes of two images each, noise about a pattern of the class; one step of
training; no feature adapter (it is trained once, on the first task). Router, rank and everything
else are the defaults. Measured are the ten tasks before each mark, which are learned and saved one by one
(medians; when there are many tasks, they are compared with each other only now and then, and each
is charged its share). The tasks between are not trained, which would take most of the time: their
generative models are made from their images, with as many vectors kept as of a task of 64 images,
and their adapters and heads are random. A model of them is as large, and as slow, as one that
learned them.

Seconds are those of one processor, so that what else a machine does counts little; waiting for the
disk is not in them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from common import random_vit
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings
from remembering.data.task import Task
from remembering.learning import algorithm as learner
from remembering.learning.algorithm import Learned
from remembering.model import RememberingTransformer
from remembering.routing import gaussian

MARKS = (10, 30, 100, 300, 1000, 3000, 10000)
PER_CLASS = 2
WINDOW = 10
BATCH = 64
STEPS = ("encode", "router", "train", "save")


def main() -> None:
    """Learn tasks, and measure at 10, 30, 100, ... of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument(
        "--backbone", default="random", help="a folder in hub layout, or random: a ViT-Ti/16"
    )
    parser.add_argument("--image-size", type=int, default=112)
    parser.add_argument("--adapter-memory", type=int, help="bytes of adapters after loading")
    parser.add_argument("--model", type=Path, help="keep the model in this folder")
    parser.add_argument("--json", type=Path, default=Path("many_tasks.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model or Path(temporary) / "model"
        backbone = options.backbone
        if backbone == "random":
            backbone = str(random_vit(Path(temporary) / "vit"))
        rows = measure(folder, backbone, options)
    about = {
        "backbone": options.backbone,
        "image_size": options.image_size,
        "images_per_task": 2 * PER_CLASS,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": rows,
    }
    options.json.write_text(json.dumps(about, indent=1) + "\n")
    plot(rows, options.json.with_suffix(".svg"))
    print(table(rows))


def images_of(number: int, count: int, seed: int = 0) -> Tensor:
    """`count` images of each class of a task: its pattern, and noise."""
    rng = torch.Generator().manual_seed(number)
    patterns = torch.rand(2, 1, 3, 7, 7, generator=rng) * 255
    patterns = patterns.repeat_interleave(8, -2).repeat_interleave(8, -1)
    noise = torch.Generator().manual_seed(10**6 * (seed + 1) + number)
    images = patterns + 40 * torch.randn(2, count, 3, 56, 56, generator=noise)
    return images.flatten(0, 1).clamp(0, 255).to(torch.uint8)


def task(number: int) -> Task:
    """Two classes of its own."""
    labels = [f"{number}{c}" for c in "ab" for _ in range(PER_CLASS)]
    return Task(f"task {number}", images_of(number, PER_CLASS), labels)


def measure(folder: Path, backbone: str, options: argparse.Namespace) -> list[dict[str, float]]:
    """Learn and save one task after another; a row at each mark."""
    model = RememberingTransformer.from_backbone(
        backbone, image_size=options.image_size, epochs=1, router=RouterSettings(feature_rank=0)
    )
    marks = {*(mark for mark in MARKS if mark < options.tasks), options.tasks}
    spent: list[dict[str, float]] = []
    rows = []
    for number in range(options.tasks):
        if not any(mark - WINDOW <= number < mark for mark in marks):
            make(model, number)
            if number + 1 + WINDOW in marks:
                model.save(folder)
            continue
        clock = dict.fromkeys(STEPS, 0.0)
        with timed(clock, model):
            model.learn(task(number))
            model.save(folder)
        spent.append(clock)
        if number + 1 in marks:
            rows.append(row(model, spent[-WINDOW:], folder, backbone, options.cache_bytes))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def make(model: RememberingTransformer, number: int) -> None:
    """Put a task into a model without training, and without comparing it with all others."""
    rng = torch.Generator().manual_seed(number)
    images = images_of(number, 1)
    features = model.router_features(images).double()
    expert = {
        "counts": torch.full((2,), float(PER_CLASS), dtype=torch.float64),
        "sums": PER_CLASS * features,
        "scatter": torch.zeros_like(model.router.shared["scatter"]),
        "usual": features.half().repeat(gaussian.USUAL_PER_TASK // 2, 1),
        "usual_class": torch.arange(2).repeat(gaussian.USUAL_PER_TASK // 2),
    }
    adapter = Adapter.new(model.backbone, model.settings.rank, model.settings.first_layer, rng)
    adapter.b.normal_(0, 0.01, generator=rng)
    head = Head.linear((f"{number}a", f"{number}b"), model.backbone)
    head.weight.normal_(0, 0.1, generator=rng)
    fitted = gaussian._Fitted.best_temperature
    gaussian._Fitted.best_temperature = lambda self: self.temperature
    model._take_over(task(number), Learned(expert, adapter, head, None, None, None))
    gaussian._Fitted.best_temperature = fitted


@contextmanager
def timed(clock: dict[str, float], model: RememberingTransformer) -> Iterator[None]:
    """Add the seconds that each step of learning takes to `clock`."""

    def wrapped(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            start = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                clock[step] += time.process_time() - start

        return run

    places: list[tuple[Any, str, str]] = [
        (learner, "encode_task", "encode"),
        (learner, "train", "train"),
        (model.router, "fit", "router"),
        (model.router, "add", "router"),
        (model, "save", "save"),
    ]
    before = [getattr(owner, name) for owner, name, _ in places]
    for (owner, name, step), function in zip(places, before, strict=True):
        setattr(owner, name, wrapped(step, function))
    try:
        yield
    finally:
        for (owner, name, _), function in zip(places, before, strict=True):
            setattr(owner, name, function)


def row(
    model: RememberingTransformer,
    spent: list[dict[str, float]],
    folder: Path,
    backbone: str,
    cache_bytes: int | None,
) -> dict[str, float]:
    """Everything that is measured at one number of tasks."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # start-up, in a fresh process
        started = pool.apply(start_up, (folder, backbone, len(model.tasks), cache_bytes))
    result: dict[str, float] = {"tasks": len(model.tasks)}
    result |= {f"{step}_s": statistics.median(s[step] for s in spent) for step in STEPS}
    result |= compare(model)
    result["router_s"] += result.pop("share_s")
    result["task_s"] = sum(result[f"{step}_s"] for step in STEPS)
    result["bytes"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    result |= {f"learner_{key}": value for key, value in resident().items()}
    return result | speed(model) | started


def compare(model: RememberingTransformer) -> dict[str, float]:
    """Seconds of the comparison that adding a task takes now and then, and its share of each."""
    router = model.router
    assert isinstance(router, gaussian.GaussianRouter)
    router.changed()
    start = time.process_time()
    router._fit().best_temperature()
    seconds, tasks = time.process_time() - start, len(model.tasks)
    often = tasks <= gaussian.REFIT_EACH  # then it is in the time of every task
    return {"compare_s": seconds, "share_s": 0.0 if often else seconds / (tasks // 16)}


def probe(tasks: int, count: int = 2 * BATCH) -> Tensor:
    """New images, of tasks spread evenly over all that are learned."""
    picked = [int(i * tasks / count) if tasks >= count else i % tasks for i in range(count)]
    return torch.stack([images_of(n, 1, seed=1 + i)[i % 2] for i, n in enumerate(picked)])


@torch.inference_mode()
def speed(model: RememberingTransformer, rounds: int = 3) -> dict[str, float]:
    """Images a second, in turn with the bare backbone so that noise strikes both."""
    images, backbone = probe(len(model.tasks)), model.backbone
    bare, ours = [], []
    said = model.predict(images)
    for _ in range(rounds):
        start = time.process_time()
        for batch in images.split(BATCH):
            backbone.pool(backbone.run(backbone.embed(batch)))
        bare.append(time.process_time() - start)
        start = time.process_time()
        model.predict(images)
        ours.append(time.process_time() - start)
    return {
        "adapters_asked": len(said.adapters.unique()),
        "images_per_s": len(images) / statistics.median(ours),
        "bare_images_per_s": len(images) / statistics.median(bare),
        "of_bare": statistics.median(b / o for b, o in zip(bare, ours, strict=True)),
    }


def start_up(folder: Path, backbone: str, tasks: int, cache_bytes: int | None) -> dict[str, float]:
    """Seconds to load a model and to its first answers, and the memory of the process."""
    torch.set_num_threads(1)
    alone = Backbone.load(backbone)
    result = {f"bare_{key}": value for key, value in resident().items()}
    del alone
    start = time.process_time()
    model = RememberingTransformer.load(folder, cache_bytes=cache_bytes)
    result["load_s"] = time.process_time() - start
    result |= {f"load_{key}": value for key, value in resident().items()}
    start = time.process_time()
    model.predict(probe(tasks)[:BATCH])
    result["first_batch_s"] = time.process_time() - start
    return result | resident()


def resident() -> dict[str, float]:
    """Megabytes of memory: the process's own, and pages of files, which can be given back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return {
        "anon_mb": int(status["RssAnon"].split()[0]) / 1024,
        "file_mb": int(status["RssFile"].split()[0]) / 1024,
    }


def table(rows: list[dict[str, float]]) -> str:
    """Markdown."""
    columns: dict[str, Callable[[dict[str, float]], str]] = {
        "tasks": lambda r: f"{r['tasks']:,}",
        "learn a task, s": lambda r: f"{r['task_s']:.2f}",
        **{f"{step}, s": lambda r, step=step: f"{r[f'{step}_s']:.2f}" for step in STEPS},
        "comparing all, s": lambda r: f"{r['compare_s']:.2f}",
        "images/s": lambda r: f"{r['images_per_s']:.0f}",
        "of the bare backbone": lambda r: f"{r['of_bare']:.2f}",
        "load, s": lambda r: f"{r['load_s']:.1f}",
        "first batch, s": lambda r: f"{r['first_batch_s']:.1f}",
        "own memory, MB": lambda r: f"{r['anon_mb']:.0f}",
        "mapped, MB": lambda r: f"{r['file_mb']:.0f}",
        "on disk, MB": lambda r: f"{r['bytes'] / 1e6:.0f}",
    }
    lines = ["| " + " | ".join(columns) + " |", "| " + "---: | " * len(columns)]
    lines += ["| " + " | ".join(show(r) for show in columns.values()) + " |" for r in rows]
    return "\n".join(lines)


def plot(rows: list[dict[str, float]], path: Path) -> None:
    """Cost against number of tasks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    tasks = [r["tasks"] for r in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    lower = [0.0] * len(rows)
    for step in STEPS:
        upper = [low + r[f"{step}_s"] for low, r in zip(lower, rows, strict=True)]
        left.fill_between(tasks, lower, upper, label=step, alpha=0.8)
        lower = upper
    left.set(xscale="log", xlabel="tasks", ylabel="seconds to learn and save one")
    left.set_ylim(bottom=0)
    left.legend(frameon=False, ncols=2)
    right.plot(tasks, [r["of_bare"] for r in rows], marker="o")
    right.set(xscale="log", xlabel="tasks", ylabel="prediction speed, of the bare backbone's")
    right.set_ylim(bottom=0)
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    main()
