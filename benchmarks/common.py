"""Shared by all benchmarks: interleaved timing, tables, JSON output and backbones."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.runtime.files import write_atomic

SHAPES = {
    "vit-tiny": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "vit-base": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
}


@dataclass(frozen=True)
class Timing:
    """Seconds of each turn of one candidate."""

    seconds: list[float]

    @property
    def best(self) -> float:
        return min(self.seconds)


@dataclass(frozen=True)
class Row:
    """One comparison with a peer.

    Attributes:
        what: What was measured.
        peer: What it is compared with.
        ratio: Seconds of the peer's best turn over seconds of our best turn.
        low: Lower quartile of the ratios of single turns.
        high: Upper quartile of the ratios of single turns.
        goal: Lowest acceptable ratio.
        note: Shown in parentheses.
    """

    what: str
    peer: str
    ratio: float
    low: float
    high: float
    goal: float | None = None
    note: str = ""


def interleaved(
    candidates: Mapping[str, Callable[[], Any]], turns: int, warm_up: int = 1
) -> dict[str, Timing]:
    """Time candidates in alternation, so that other load on the machine affects all of them."""
    for _ in range(warm_up):
        for run in candidates.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(turns):
        for name, run in candidates.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return {name: Timing(values) for name, values in seconds.items()}


def compare(
    what: str, ours: Timing, peer_name: str, peer: Timing, goal: float | None = None, note: str = ""
) -> Row:
    """Compare the timings of two candidates that ran in the same turns."""
    ratios = [p / o for o, p in zip(ours.seconds, peer.seconds, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Row(what, peer_name, peer.best / ours.best, low, high, goal, note)


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument(
        "--backbone", help="folder of a ViT-Ti/16 in hub layout; random weights if omitted"
    )
    made.add_argument("--turns", type=int, default=7)
    made.add_argument("--json", type=Path)
    return made


def load(folder: str | None, size: int, shape: str = "vit-tiny") -> tuple[Backbone, Any]:
    """Return the same frozen weights as our backbone and as the model of transformers."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        if folder is None or shape != "vit-tiny":
            folder = str(random_vit(Path(scratch), shape))
        model = transformers.ViTModel.from_pretrained(folder, add_pooling_layer=False).eval()
        return Backbone.load(folder, size), model.requires_grad_(False)


def random_vit(folder: Path, shape: str = "vit-tiny") -> Path:
    """Write a ViT/16 with random weights in hub layout; its speed does not depend on them."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SHAPES[shape], image_size=224, patch_size=16)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def pixels(count: int, size: int) -> Tensor:
    """Return random normalised images; speed does not depend on their content."""
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def publish(title: str, rows: Sequence[Row], path: Path | None, **more: Any) -> None:
    """Print a Markdown table and write the rows as JSON."""
    print(f"\n{title} ({torch.get_num_threads()} threads, torch {torch.__version__})\n")
    print("| | against | times as fast | quartiles of turns | goal |")
    print("| --- | --- | ---: | ---: | ---: |")
    for row in rows:
        goal = f"{row.goal:.2f}" if row.goal else ""
        what = f"{row.what} ({row.note})" if row.note else row.what
        print(
            f"| {what} | {row.peer} | {row.ratio:.2f} | {row.low:.2f} to {row.high:.2f} | {goal} |",
            flush=True,
        )
    if path:
        record = {
            "title": title,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "rows": [asdict(row) for row in rows],
            **more,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(record, indent=1) + "\n").encode())
