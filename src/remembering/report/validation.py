"""Is this a results.json that the report can use?

`results.schema.json` beside this file is the full contract, checked in the tests. `jsonschema` is
not needed to read a report, so at run time the same essentials are checked by hand, with errors
that say which key of which file is wrong.
"""

from __future__ import annotations

import re
from typing import Any

from remembering.errors import RememberingError
from remembering.report.checks import (
    Check,
    list_of,
    map_of,
    null_or,
    number,
    rate,
    record,
    text,
    truth,
    whole,
)

VERSION = 1

_UNIT = re.compile(r"sample|task|group_[1-9][0-9]*")


def check_results(results: Any, where: str) -> None:
    """Raise if a results document lacks what tables, plots or the page use."""
    if not isinstance(results, dict):
        raise _error(where, "is not a JSON object")
    if results.get("version") != VERSION:
        raise RememberingError(
            f"{where} has version {results.get('version')!r}, this release reads version "
            f"{VERSION}; run the experiment again or use the release that wrote it"
        )
    for key, (fits, wanted) in _CHECKS.items():
        if key not in results:
            raise _error(where, f"has no '{key}'")
        if not fits(results[key]):
            raise _error(where, f"has a wrong '{key}' (wanted: {wanted})")
    _check_lengths(results, where)


def _check_lengths(results: dict[str, Any], where: str) -> None:
    """Everything that is told per unit or per task has one entry for each of them."""
    tasks = len(results["tasks"])
    for key in ("accuracy", "routing_accuracy", "accuracy_after"):
        missing = [unit for unit in results["units"] if unit not in results[key]]
        if missing:
            raise _error(where, f"lists the unit '{missing[0]}' but has no '{key}' for it")
    series = {f"accuracy_after.{unit}": v for unit, v in results["accuracy_after"].items()}
    series |= {
        f"baselines.{name}.accuracy_after": baseline["accuracy_after"]
        for name, baseline in results["baselines"].items()
    }
    for key in ("oracle_after", "ablated_after", "seconds_learning"):
        series[key] = results[key]
    if "sample" in results["units"]:
        series["accuracy_matrix"] = results["accuracy_matrix"]
    series |= {f"accuracy_matrix[{i}]": row for i, row in enumerate(results["accuracy_matrix"])}
    for key, values in series.items():
        if values is not None and len(values) != tasks:
            raise _error(where, f"has {tasks} tasks but {len(values)} values in '{key}'")
    if len({len(row) for row in results["reconstruction_errors"]}) > 1:
        raise _error(where, "has rows of unequal length in 'reconstruction_errors'")


def _error(where: str, problem: str) -> RememberingError:
    return RememberingError(
        f"{where} {problem}, so it is not a finished result of this release; "
        "run the experiment again or leave this folder out"
    )


def _units(value: Any) -> bool:
    known = list_of(lambda unit: text(unit) and _UNIT.fullmatch(unit) is not None)
    return bool(value) and known(value) and len(set(value)) == len(value)


_TASK = record(
    name=text,
    classes=list_of(lambda label: isinstance(label, str | int)),
    train=whole,
    test=whole,
    adapter=whole,
)
_BASELINE = record(
    accuracy=rate,
    accuracy_after=list_of(null_or(rate)),
    forgetting=null_or(number),
    parameters=whole,
    seconds=number,
)
_PUBLISHED = record(accuracy=number, deviation=null_or(number), unit=text, where=text)
_FOOTPRINT = record(
    adapters=whole, heads=whole, routers=whole, replay_bytes=whole, total_parameters=whole
)
_RATES = "numbers from 0 to 1"

_CHECKS: dict[str, tuple[Check, str]] = {
    "experiment": (text, "text"),
    "variant": (null_or(text), "text or null"),
    "description": (text, "text"),
    "small": (truth, "true or false"),
    "backbone": (text, "text"),
    "image_size": (whole, "a whole number"),
    "data": (text, "text"),
    "seed": (whole, "a whole number"),
    "router": (record(kind=text), "an object with a kind"),
    "tasks": (
        lambda value: bool(value) and list_of(_TASK)(value),
        "a list of tasks, each with name, classes, train, test and adapter",
    ),
    "units": (_units, "different routing units: sample, group_<n> or task"),
    "accuracy": (map_of(rate), _RATES),
    "routing_accuracy": (map_of(rate), _RATES),
    "oracle_task_accuracy": (rate, _RATES),
    "ablated_accuracy": (null_or(rate), _RATES),
    "accuracy_after": (map_of(list_of(rate)), _RATES),
    "oracle_after": (list_of(rate), _RATES),
    "ablated_after": (null_or(list_of(rate)), _RATES),
    "accuracy_matrix": (list_of(list_of(null_or(rate))), _RATES),
    "forgetting": (null_or(number), "a number or null"),
    "reconstruction_errors": (list_of(list_of(number)), "rows of numbers"),
    "baselines": (
        map_of(_BASELINE),
        "for each baseline accuracy, accuracy_after, forgetting, parameters and seconds",
    ),
    "published": (null_or(_PUBLISHED), "null, or accuracy, deviation, unit and where"),
    "footprint": (
        _FOOTPRINT,
        "whole numbers: adapters, heads, routers, replay_bytes, total_parameters",
    ),
    "seconds": (number, "a number"),
    "seconds_learning": (list_of(number), "numbers"),
    "environment": (map_of(lambda value: isinstance(value, str | int)), "texts or whole numbers"),
}
REQUIRED = ("version", *_CHECKS)
