"""Results as an experiment would write them, with numbers that are easy to check by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def make_results(task_count: int = 5, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A valid results document; keyword arguments replace whole keys."""
    units = ["sample", "group_32", "group_128", "task"]
    final = dict(zip(units, (0.61, 0.87, 0.95, 0.97), strict=True))

    def falling(start: float, end: float) -> list[float]:
        return [
            round(start + (end - start) * i / max(task_count - 1, 1), 4) for i in range(task_count)
        ]

    oracle = falling(1.0, 0.98)
    results: dict[str, Any] = {
        "version": 1,
        "experiment": "cifar10-5",
        "variant": None,
        "description": "CIFAR-10 in five tasks of two classes, the paper's Table 1.",
        "small": True,
        "backbone": "bundled",
        "image_size": 28,
        "data": "digits",
        "seed": seed,
        "router": {"kind": "autoencoder", "layers": [0], "latent": 1},
        "tasks": [
            {
                "name": f"digits {2 * i}-{2 * i + 1}",
                "classes": [2 * i, 2 * i + 1],
                "train": 280,
                "test": 80,
                "adapter": i,
            }
            for i in range(task_count)
        ],
        "units": units,
        "accuracy": final,
        "routing_accuracy": {"sample": 0.62, "group_32": 0.88, "group_128": 0.96, "task": 1.0},
        "oracle_task_accuracy": oracle[-1],
        "ablated_accuracy": 0.44,
        "accuracy_after": {unit: falling(oracle[0], value) for unit, value in final.items()},
        "oracle_after": oracle,
        "ablated_after": falling(1.0, 0.44),
        "accuracy_matrix": [
            [max(0.95 - 0.04 * (i - j), 0.0) if j <= i else None for j in range(task_count)]
            for i in range(task_count)
        ],
        "forgetting": 0.123 if task_count > 1 else None,
        "reconstruction_errors": [
            [0.20 + 0.07 * abs(i - j) + 0.01 * j for j in range(task_count)]
            for i in range(task_count)
        ],
        "baselines": {
            "joint": {
                "accuracy": 0.93,
                "accuracy_after": [None] * (task_count - 1) + [0.93],
                "forgetting": None,
                "parameters": 30_000,
                "seconds": 9.5,
            },
            "finetune": {
                "accuracy": 0.198,
                "accuracy_after": falling(1.0, 0.198),
                "forgetting": 0.81,
                "parameters": 30_000,
                "seconds": 8.5,
            },
        },
        "published": {"accuracy": 99.3, "deviation": 0.24, "unit": "task", "where": "Table 1"},
        "footprint": {
            "adapters": 20_480,
            "heads": 650,
            "routers": 1_970,
            "replay_bytes": 401_408,
            "bytes": 494_000,
            "total_parameters": 23_100,
        },
        "seconds": 42.5,
        "seconds_learning": [4.2] * task_count,
        "environment": {"python": "3.11.7", "torch": "2.8.0", "threads": 2},
    }
    return {**results, **changes}


def write_run(folder: Path, results: dict[str, Any], config: str = "rank = 1\n") -> Path:
    """A run directory with results.json and config.toml."""
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (folder / "config.toml").write_text(config, encoding="utf-8")
    return folder
