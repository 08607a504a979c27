"""Measure the cost of a task in models with many tasks.

    python benchmarks/many_tasks.py --tasks 1000 --backbone FOLDER

Each task has two classes of eight images (noise around a pattern of the class). All tasks share one
adapter, which is not trained (`adapters="first"`, `epochs=0`); all other settings are the defaults.
The ten tasks before each mark (10, 30, 100, ...) are timed and saved one by one, and their medians
are reported. With many tasks the temperature is fitted only for some of them; each task is charged
its share.

Seconds are CPU time of one thread: they exclude other load on the machine and waiting for the disk.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from common import random_vit
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.task import Task
from remembering.model import RememberingTransformer
from remembering.routing import gaussian

MARKS = (10, 30, 100, 300, 1000, 3000, 10000)
PER_CLASS = 8
WINDOW = 10
BATCH = 64
STEPS = ("learn", "save")


def main() -> None:
    """Measure models of 10, 30, 100, ... tasks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument(
        "--backbone",
        default="random",
        help="a folder in hub layout; random: a ViT-Ti/16 with random weights",
    )
    parser.add_argument("--image-size", type=int, default=112)
    parser.add_argument(
        "--cache-bytes", type=int, help="upper bound on cached adapters after loading"
    )
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
    """Return `count` images of each class of a task: its pattern plus noise."""
    rng = torch.Generator().manual_seed(number)
    patterns = torch.rand(2, 1, 3, 7, 7, generator=rng) * 255
    patterns = patterns.repeat_interleave(8, -2).repeat_interleave(8, -1)
    noise = torch.Generator().manual_seed(10**6 * (seed + 1) + number)
    images = patterns + 40 * torch.randn(2, count, 3, 56, 56, generator=noise)
    return images.flatten(0, 1).clamp(0, 255).to(torch.uint8)


def task(number: int) -> Task:
    """Return a task with two classes of its own."""
    labels = [f"{number}{c}" for c in "ab" for _ in range(PER_CLASS)]
    return Task(f"task {number}", images_of(number, PER_CLASS), labels)


def measure(folder: Path, backbone: str, options: argparse.Namespace) -> list[dict[str, float]]:
    """Learn and save one task after another, and return a row for each mark."""
    model = RememberingTransformer.from_backbone(
        backbone, image_size=options.image_size, adapters="first", epochs=0
    )
    marks = {*(mark for mark in MARKS if mark < options.tasks), options.tasks}
    spent: list[dict[str, float]] = []
    rows = []
    for number in range(options.tasks):
        measured = any(mark - WINDOW <= number < mark for mark in marks)
        start = time.process_time()
        model.learn(task(number))
        learned = time.process_time()
        if measured or number + 1 + WINDOW in marks:
            model.save(folder)
        if measured:
            spent.append({"learn": learned - start, "save": time.process_time() - learned})
        if number + 1 in marks:
            rows.append(row(model, spent[-WINDOW:], folder, backbone, options.cache_bytes))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def row(
    model: RememberingTransformer,
    spent: list[dict[str, float]],
    folder: Path,
    backbone: str,
    cache_bytes: int | None,
) -> dict[str, float]:
    """Return all measurements at one number of tasks."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # start-up, in a fresh process
        started = pool.apply(start_up, (folder, backbone, len(model.tasks), cache_bytes))
    result: dict[str, float] = {"tasks": len(model.tasks)}
    result |= {f"{step}_s": statistics.median(s[step] for s in spent) for step in STEPS}
    result |= temperature_cost(model)
    result["learn_s"] += result.pop("share_s")
    result["task_s"] = sum(result[f"{step}_s"] for step in STEPS)
    result["bytes"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    result |= {f"learner_{key}": value for key, value in resident().items()}
    return result | speed(model) | started


def temperature_cost(model: RememberingTransformer) -> dict[str, float]:
    """Return the seconds to fit the temperature, and the uncounted share of each task."""
    known = model.state.classifiers[0]
    fresh = type(known)(known.settings, known.experts, known.shared)  # no caches
    start = time.process_time()
    fresh.gaussians.best_temperature()
    seconds, tasks = time.process_time() - start, len(model.tasks)
    counted = tasks <= gaussian.REFIT_ALWAYS  # it is part of learning every task
    return {"temperature_s": seconds, "share_s": 0.0 if counted else seconds / (tasks // 16)}


def probe(tasks: int, count: int = 2 * BATCH) -> Tensor:
    """Return new images of tasks that are spread evenly over the learned ones."""
    picked = [int(i * tasks / count) if tasks >= count else i % tasks for i in range(count)]
    return torch.stack([images_of(n, 1, seed=1 + i)[i % 2] for i, n in enumerate(picked)])


@torch.inference_mode()
def speed(model: RememberingTransformer, rounds: int = 3) -> dict[str, float]:
    """Return images per second, in alternation with the bare backbone."""
    images, backbone = probe(len(model.tasks)), model.backbone
    bare, ours = [], []
    prediction = model.predict(images)  # also reads the adapters
    for _ in range(rounds):
        start = time.process_time()
        for batch in images.split(BATCH):
            backbone.pool(backbone.run(backbone.embed(batch)))
        bare.append(time.process_time() - start)
        start = time.process_time()
        model.predict(images)
        ours.append(time.process_time() - start)
    return {
        "adapters_used": len(prediction.adapters.unique()),
        "images_per_s": len(images) / statistics.median(ours),
        "bare_images_per_s": len(images) / statistics.median(bare),
        "of_bare": statistics.median(b / o for b, o in zip(bare, ours, strict=True)),
    }


def start_up(folder: Path, backbone: str, tasks: int, cache_bytes: int | None) -> dict[str, float]:
    """Return the seconds to load a model and predict a batch, and the memory of the process."""
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
    """Return megabytes of private memory, and of mapped files, which the system can reclaim."""
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return {
        "anon_mb": int(status["RssAnon"].split()[0]) / 1024,
        "file_mb": int(status["RssFile"].split()[0]) / 1024,
    }


def table(rows: list[dict[str, float]]) -> str:
    """Return the rows as a Markdown table."""
    columns: dict[str, Callable[[dict[str, float]], str]] = {
        "tasks": lambda r: f"{r['tasks']:,}",
        "learn a task, s": lambda r: f"{r['task_s']:.2f}",
        **{f"{step}, s": lambda r, step=step: f"{r[f'{step}_s']:.2f}" for step in STEPS},
        "temperature, s": lambda r: f"{r['temperature_s']:.2f}",
        "images/s": lambda r: f"{r['images_per_s']:.0f}",
        "relative to the bare backbone": lambda r: f"{r['of_bare']:.2f}",
        "load, s": lambda r: f"{r['load_s']:.1f}",
        "first batch, s": lambda r: f"{r['first_batch_s']:.1f}",
        "private memory, MB": lambda r: f"{r['anon_mb']:.0f}",
        "mapped, MB": lambda r: f"{r['file_mb']:.0f}",
        "on disk, MB": lambda r: f"{r['bytes'] / 1e6:.0f}",
    }
    lines = ["| " + " | ".join(columns) + " |", "| " + "---: | " * len(columns)]
    lines += ["| " + " | ".join(show(r) for show in columns.values()) + " |" for r in rows]
    return "\n".join(lines)


def plot(rows: list[dict[str, float]], path: Path) -> None:
    """Plot the costs against the number of tasks."""
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
    left.set(xscale="log", xlabel="tasks", ylabel="seconds to learn and save a task")
    left.set_ylim(bottom=0)
    left.legend(frameon=False, ncols=2)
    right.plot(tasks, [r["of_bare"] for r in rows], marker="o")
    right.set(xscale="log", xlabel="tasks", ylabel="speed relative to the bare backbone")
    right.set_ylim(bottom=0)
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    main()
