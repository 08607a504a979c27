"""Is this a results.json that the report can use?

`results.schema.json` beside this file is the full contract, checked in the tests. `jsonschema` is
not needed to read a report, so at run time the same essentials are checked by hand, with errors
that say which key of which file is wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from remembering.errors import RememberingError

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


Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _rate(value: Any) -> bool:
    return _number(value) and 0 <= value <= 1


def _null_or(fits: Check) -> Check:
    return lambda value: value is None or fits(value)


def _list_of(fits: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _map_of(fits: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _record(**fields: Check) -> Check:
    return lambda value: (
        isinstance(value, dict)
        and all(key in value and fits(value[key]) for key, fits in fields.items())
    )


def _units(value: Any) -> bool:
    known = _list_of(lambda unit: _text(unit) and _UNIT.fullmatch(unit) is not None)
    return bool(value) and known(value) and len(set(value)) == len(value)


_TASK = _record(
    name=_text,
    classes=_list_of(lambda label: isinstance(label, str | int)),
    train=_whole,
    test=_whole,
    adapter=_whole,
)
_BASELINE = _record(
    accuracy=_rate,
    accuracy_after=_list_of(_null_or(_rate)),
    forgetting=_null_or(_number),
    parameters=_whole,
    seconds=_number,
)
_PUBLISHED = _record(accuracy=_number, deviation=_null_or(_number), unit=_text, where=_text)
_FOOTPRINT = _record(
    adapters=_whole, heads=_whole, routers=_whole, replay_bytes=_whole, total_parameters=_whole
)
_RATES = "numbers from 0 to 1"

_CHECKS: dict[str, tuple[Check, str]] = {
    "experiment": (_text, "text"),
    "variant": (_null_or(_text), "text or null"),
    "description": (_text, "text"),
    "small": (lambda value: isinstance(value, bool), "true or false"),
    "backbone": (_text, "text"),
    "image_size": (_whole, "a whole number"),
    "data": (_text, "text"),
    "seed": (_whole, "a whole number"),
    "router": (_record(kind=_text), "an object with a kind"),
    "tasks": (
        lambda value: bool(value) and _list_of(_TASK)(value),
        "a list of tasks, each with name, classes, train, test and adapter",
    ),
    "units": (_units, "different routing units: sample, group_<n> or task"),
    "accuracy": (_map_of(_rate), _RATES),
    "routing_accuracy": (_map_of(_rate), _RATES),
    "oracle_task_accuracy": (_rate, _RATES),
    "ablated_accuracy": (_null_or(_rate), _RATES),
    "accuracy_after": (_map_of(_list_of(_rate)), _RATES),
    "oracle_after": (_list_of(_rate), _RATES),
    "ablated_after": (_null_or(_list_of(_rate)), _RATES),
    "accuracy_matrix": (_list_of(_list_of(_null_or(_rate))), _RATES),
    "forgetting": (_null_or(_number), "a number or null"),
    "reconstruction_errors": (_list_of(_list_of(_number)), "rows of numbers"),
    "baselines": (
        _map_of(_BASELINE),
        "for each baseline accuracy, accuracy_after, forgetting, parameters and seconds",
    ),
    "published": (_null_or(_PUBLISHED), "null, or accuracy, deviation, unit and where"),
    "footprint": (
        _FOOTPRINT,
        "whole numbers: adapters, heads, routers, replay_bytes, total_parameters",
    ),
    "seconds": (_number, "a number"),
    "seconds_learning": (_list_of(_number), "numbers"),
    "environment": (_map_of(lambda value: isinstance(value, str | int)), "texts or whole numbers"),
}
REQUIRED = ("version", *_CHECKS)
