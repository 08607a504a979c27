"""Is a value what a file of results should have? Predicates, put together where files are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]


def text(value: Any) -> bool:
    return isinstance(value, str)


def truth(value: Any) -> bool:
    return isinstance(value, bool)


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def rate(value: Any) -> bool:
    return number(value) and 0 <= value <= 1


def null_or(fits: Check) -> Check:
    return lambda value: value is None or fits(value)


def list_of(fits: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def map_of(fits: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def record(**fields: Check) -> Check:
    return lambda value: (
        isinstance(value, dict)
        and all(key in value and fits(value[key]) for key, fits in fields.items())
    )
