"""The outcome of one method under one seed, as `remember compare` writes it: read and checked."""

from __future__ import annotations

import json
from pathlib import Path
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

VERSION = 2

Record = dict[str, Any]

_SCORES = record(
    accuracy=rate,
    average=null_or(rate),
    forgetting=null_or(number),
    accuracy_after=list_of(null_or(rate)),
)
_CHECKS: dict[str, Check] = {
    "experiment": text,
    "description": text,
    "small": truth,
    "backbone": text,
    "image_size": whole,
    "data": text,
    "seed": whole,
    "tasks": whole,
    "method": text,
    "title": text,
    "reference": text,
    "stores": text,
    "published": null_or(text),
    "options": map_of(number),
    "given": map_of(number),
    "asked": list_of(text),
    "units": lambda value: bool(value) and map_of(_SCORES)(value),
    "trained": whole,
    "kept": record(parameters=whole, bytes=whole, images=whole),
    "seconds_learning": list_of(number),
    "images_per_second": number,
    "seconds": number,
}
_LEFT_OUT = map_of(record(title=text, reason=text, published=null_or(text)))


def load_record(path: Path) -> Record:
    """The outcome in a file METHOD/seed-N.json.

    Raises:
        RememberingError: if it is damaged, of another version, or of another method or seed.
    """
    found = _json(path)
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise RememberingError(
            f"{path} is no outcome of version {VERSION}; remove it and compare again"
        )
    for key, fits in _CHECKS.items():
        if key not in found or not fits(found[key]):
            raise RememberingError(f"{path} has no right '{key}'; remove it and compare again")
    if any(len(unit["accuracy_after"]) != found["tasks"] for unit in found["units"].values()):
        raise RememberingError(f"{path} has no right 'units'; remove it and compare again")
    whose = f"{found['method']}/seed-{found['seed']}"
    if f"{path.parent.name}/{path.stem}" != whose:
        raise RememberingError(f"{path} holds the outcome of {whose}; move it there or remove it")
    return found


def load_left_out(path: Path) -> dict[str, dict[str, Any]]:
    """Methods that are left out, and why, by name; none where there is no such file."""
    if not path.is_file():
        return {}
    found = _json(path)
    if not _LEFT_OUT(found):
        raise RememberingError(f"{path} is damaged; remove it and compare again")
    methods: dict[str, dict[str, Any]] = found
    return methods


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RememberingError(
            f"{path} cannot be read ({error}); remove it and compare again"
        ) from error
