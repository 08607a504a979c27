"""Mutations that keep a file well-formed: of JSON, and of the JSON header of safetensors files."""

from __future__ import annotations

import json
import random
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "x", "0", "\0", "../../x", "/x", "\ud800", "\x1b[31m\n"),
    *("a" * 3000, "F64", "BF16", "U8", [], {}, [[]], [0], [0, 2**62], [-1, 5], {"x": {}}),
)


def mutated(data: bytes, rng: random.Random) -> bytes | None:
    """Return a variation of a JSON or safetensors file, or None if it is neither.

    A first byte that is not part of the file, by which a target selects what the rest is, stays.
    """
    for start in (0, 1):
        prefix, rest = data[:start], data[start:]
        try:
            return prefix + json.dumps(_changed(json.loads(rest), rng)).encode()
        except (ValueError, RecursionError):
            pass
        length = int.from_bytes(rest[:8], "little")
        try:
            header = json.dumps(_changed(json.loads(rest[8 : 8 + length]), rng)).encode()
        except (ValueError, RecursionError):
            continue
        return prefix + len(header).to_bytes(8, "little") + header + rest[8 + length :]
    return None


def _changed(value: Any, rng: random.Random) -> Any:
    """Replace, remove, copy or add some entries of nested lists and dictionaries."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        places = [*_places(value)]
        if not places:
            return rng.choice(VALUES)
        container, key = rng.choice(places)
        other, other_key = rng.choice(places)
        kind = rng.randrange(8)
        if kind < 4:
            container[key] = rng.choice(VALUES)
        elif kind < 6:
            container[key] = json.loads(json.dumps(other[other_key]))
        elif kind == 6:
            del container[key]
        elif isinstance(container, dict):
            container[rng.choice(("", "x", "0", "__metadata__", f"{key}x"))] = container[key]
        else:
            container.insert(key, rng.choice(VALUES))
    return value


def _places(value: Any) -> Any:
    """Yield the containers and keys of all entries."""
    if isinstance(value, dict):
        entries: Any = value.items()
    else:
        entries = enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield value, key
        yield from _places(inner)
