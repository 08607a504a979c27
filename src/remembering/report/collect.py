"""From folders to what is shown: groups of runs, and comparisons of methods."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from remembering import schema
from remembering.errors import RememberingError
from remembering.experiments.result import RunResult
from remembering.experiments.spec import MODEL
from remembering.report.comparison import Comparison
from remembering.report.groups import Group, Seeds, load_results

_FIRST = {"joint": 0, "finetune": 1}


def collect(paths: Iterable[str | Path]) -> tuple[list[Group], list[Comparison]]:
    """Read all results in some folders and below them, grouped over seeds, in a stable order.

    Raises:
        RememberingError: If a folder does not exist, or results that belong together differ.
    """
    results = load_results(paths)
    runs, compared = ([r for r in results if r.compared == wanted] for wanted in (False, True))
    return group_runs(runs), group_comparisons(compared)


def group_runs(results: Sequence[RunResult]) -> list[Group]:
    """Group the results of `remember run` over seeds, with the baselines beside the model."""
    together: dict[tuple[Any, ...], dict[str, list[RunResult]]] = {}
    for result in results:
        config = result.config
        key = (config.experiment, config.variant, config.small, result.backbone)
        together.setdefault(key, {}).setdefault(config.method, []).append(result)
    groups = []
    for (experiment, *_), methods in together.items():
        if MODEL not in methods:
            raise RememberingError(
                f"there are results of baselines of {experiment} but none of its model; give the "
                "folder that contains both"
            )
        names = sorted(methods.keys() - {MODEL}, key=lambda name: (_FIRST.get(name, 2), name))
        baselines = tuple(Seeds.of(methods[name]) for name in names)
        groups.append(Group(Seeds.of(methods[MODEL]), baselines))
    return sorted(groups, key=_order)


def group_comparisons(results: Sequence[RunResult]) -> list[Comparison]:
    """Group the results of `remember compare` by experiment and settings."""
    together: dict[str, dict[str, list[RunResult]]] = {}
    for result in results:
        config = replace(result.config.comparable(), method="", options={})
        key = json.dumps([schema.write(config), result.backbone, result.image_size], sort_keys=True)
        together.setdefault(key, {}).setdefault(result.config.method, []).append(result)
    comparisons = [
        Comparison.of([Seeds.of(found) for found in methods.values()])
        for methods in together.values()
    ]
    return sorted(comparisons, key=lambda item: (item.experiment, item.small, item.slug))


def _order(group: Group) -> tuple[Any, ...]:
    """Order by experiment, full size before small, and variants by decreasing numbers."""
    parts = re.split(r"(\d+)", group.variant or "")
    variant = tuple((0, -int(p), "") if p.isdigit() else (1, 0, p) for p in parts)
    return (group.experiment, group.small, group.backbone, variant)
