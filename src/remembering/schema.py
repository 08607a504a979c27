"""Strict conversion between dataclasses and plain JSON or TOML values.

Wrong types, values out of range, unknown keys and missing keys are rejected with an error that
names the file and the key. `json_schema` describes the same format for other programs.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from remembering.errors import RememberingError

T = TypeVar("T")
_LARGEST = 1e300
"""Larger integers cannot be converted to floats."""


@dataclasses.dataclass(frozen=True)
class Between:
    """Inclusive bounds of a number, for use in `Annotated`."""

    low: float | None = None
    high: float | None = None


Rate = Annotated[float, Between(0, 1)]
Count = Annotated[int, Between(0)]


def read(kind: type[T], data: Any, where: str) -> T:
    """Build a dataclass from a mapping.

    Args:
        kind: The dataclass. Fields with a default may be missing in the mapping.
        data: The mapping, as JSON or TOML yields it.
        where: Name of the file, for error messages.

    Raises:
        RememberingError: If a key is unknown or missing, or a value does not fit its type.

    >>> from remembering.config import RouterSettings
    >>> read(RouterSettings, {"kind": "subspace", "layers": [0, 2]}, "config.toml").layers
    (0, 2)
    """
    try:
        result: T = _reader(kind)(data, where, "")
    except RecursionError as error:
        raise RememberingError(f"{where} is nested too deeply") from error
    return result


def write(value: Any) -> Any:
    """Convert a dataclass to plain values that `read` turns back into an equal one.

    Fields that are None are left out, because TOML has no null.
    """
    if dataclasses.is_dataclass(value):
        items = ((item.name, getattr(value, item.name)) for item in dataclasses.fields(value))
        return {name: write(item) for name, item in items if item is not None}
    if isinstance(value, dict):
        return {key: write(item) for key, item in value.items()}
    return [write(item) for item in value] if isinstance(value, tuple | list) else value


def check(settings: Any, where: str, prefix: str = "") -> None:
    """Check the types of a dataclass made in Python as `read` would.

    Numbers of NumPy and torch are replaced by Python's, which JSON and TOML can represent.
    """
    made: Any = type(settings)
    for name, reader in _field_readers(made).items():
        value = reader(getattr(settings, name), where, _join(prefix, name))
        object.__setattr__(settings, name, value)


def check_names(kind: type, names: Iterable[str], where: str, prefix: str = "") -> None:
    """Check that a dataclass has fields of these names.

    Raises:
        RememberingError: If not; the message contains the closest name.
    """
    known = _names(kind)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(known)}"
            raise RememberingError(f"{where}: unknown setting '{_join(prefix, name)}'; {hint}")


def differences(one: Any, other: Any) -> list[str]:
    """Return the dotted names of the fields in which two dataclasses differ.

    >>> from remembering.config import Settings
    >>> differences(Settings(rank=2), Settings(router={"latent": 3}))
    ['rank', 'router.latent']
    """
    return _differences(write(one), write(other))


def _differences(one: dict[str, Any], other: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in sorted(one.keys() | other.keys()):
        a, b = one.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{_join(prefix, key)}")
        elif a != b:
            found.append(_join(prefix, key))
    return found


def json_schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of the mapping that `read` accepts for a dataclass."""
    definitions: dict[str, Any] = {}
    root = _describe(kind, definitions)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": kind.__name__, **root, "$defs": definitions}


def _describe(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        name = getattr(kind, "__name__", str(kind))
        if name not in definitions:
            definitions[name] = {}  # a dataclass may contain itself
            definitions[name] = _describe_dataclass(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if origin is Annotated:
        described = _describe(arguments[0], definitions)
        for bounds in (mark for mark in arguments[1:] if isinstance(mark, Between)):
            limits = {"minimum": bounds.low, "maximum": bounds.high}
            described |= {key: limit for key, limit in limits.items() if limit is not None}
        return described
    if origin in (Union, types.UnionType):
        return {"anyOf": [_describe(option, definitions) for option in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _describe(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _describe(arguments[1], definitions)}
    return {} if kind is Any else {"type": _JSON_TYPES[kind]}


_JSON_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
}


def _describe_dataclass(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = _hints(kind)
    return {
        "type": "object",
        "description": str(kind.__doc__).splitlines()[0],
        "additionalProperties": False,
        "required": _required(kind),
        "properties": {name: _describe(hints[name], definitions) for name in _names(kind)},
    }


Reader = Callable[[Any, str, str], Any]
"""Converts a value; the other arguments are the name of the file and the key, for errors."""


def _reader(kind: Any) -> Reader:
    """Return the function that converts values to a type."""
    inner = _inner_reader(kind)
    return lambda data, where, key: inner(
        data.tolist() if hasattr(data, "tolist") else data, where, key
    )


def _inner_reader(kind: Any) -> Reader:
    origin, arguments = get_origin(kind), get_args(kind)

    def wrong(data: Any, where: str, key: str) -> Any:
        raise _wrong(where, key, data, f"of type {getattr(origin or kind, '__name__', kind)}")

    if dataclasses.is_dataclass(kind):
        return partial(_dataclass, kind)
    if origin is Annotated:
        whole = _reader(arguments[0])
        return lambda data, where, key: _bounded(arguments, whole(data, where, key), where, key)
    if origin in (Union, types.UnionType):
        return partial(_union, arguments, [_reader(o) for o in arguments if o is not type(None)])
    if origin is Literal:
        return partial(_literal, arguments)
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda data, where, key: (
            tuple(item(part, where, key) for part in data)
            if isinstance(data, list | tuple)
            else wrong(data, where, key)
        )
    if origin is dict:
        item = _reader(arguments[1])
        return lambda data, where, key: (
            {str(k): item(v, where, f"{key}.{k}") for k, v in data.items()}
            if isinstance(data, dict)
            else wrong(data, where, key)
        )
    if kind is float:
        return lambda data, where, key: (
            _float(data, where, key)
            if isinstance(data, int | float) and not isinstance(data, bool)
            else wrong(data, where, key)
        )
    if kind is int:
        return lambda data, where, key: (
            _int(data, where, key) if type(data) is int else wrong(data, where, key)
        )
    return lambda data, where, key: (
        data if kind is Any or type(data) is kind else wrong(data, where, key)
    )


def _literal(options: tuple[Any, ...], data: Any, where: str, key: str) -> Any:
    if data not in options:
        raise _wrong(where, key, data, "one of " + ", ".join(map(repr, options)))
    return data


def _int(data: int, where: str, key: str) -> int:
    if abs(data) < _LARGEST:
        return data
    raise _wrong(where, key, data, f"below {_LARGEST:g}")


def _float(data: float, where: str, key: str) -> float:
    if abs(data) < _LARGEST:  # neither NaN nor infinite, nor an integer that overflows
        return float(data)
    raise _wrong(where, key, data, "a finite number")


def _union(
    options: tuple[Any, ...], readers: Sequence[Reader], data: Any, where: str, key: str
) -> Any:
    """Convert to the first option that fits; the error is that of the last one."""
    if data is None and type(None) in options:
        return None
    for reader in readers[:-1]:
        try:
            return reader(data, where, key)
        except RememberingError:
            continue
    return readers[-1](data, where, key)


def _bounded(arguments: tuple[Any, ...], value: Any, where: str, key: str) -> Any:
    for bounds in (mark for mark in arguments[1:] if isinstance(mark, Between)):
        if bounds.low is not None and value < bounds.low:
            raise _wrong(where, key, value, f"at least {bounds.low:g}")
        if bounds.high is not None and value > bounds.high:
            raise _wrong(where, key, value, f"at most {bounds.high:g}")
    return value


def _dataclass(kind: Any, data: Any, where: str, prefix: str) -> Any:
    if type(data) is kind:
        return data
    if not isinstance(data, dict):
        raise _wrong(where, prefix, data, "a table of settings")
    readers = _field_readers(kind)
    if not data.keys() <= readers.keys():
        check_names(kind, data, where, prefix)  # raises
    for key in _required(kind):
        if key not in data:
            raise RememberingError(f"{where}: '{_join(prefix, key)}' is missing")
    values = {k: readers[k](v, where, _join(prefix, k)) for k, v in data.items()}
    try:
        return kind(**values)
    except RememberingError as error:
        raise RememberingError(f"{where}: {error}") from error


def _names(kind: Any) -> list[str]:
    return [item.name for item in dataclasses.fields(kind) if item.init]


@cache
def _field_readers(kind: Any) -> dict[str, Reader]:
    hints = _hints(kind)
    return {name: _reader(hints[name]) for name in _names(kind)}


@cache
def _required(kind: Any) -> list[str]:
    missing = dataclasses.MISSING
    return [
        item.name
        for item in dataclasses.fields(kind)
        if item.init and item.default is missing and item.default_factory is missing
    ]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _join(prefix: str, key: object) -> str:
    return f"{prefix}.{key}" if prefix else str(key)


def _wrong(where: str, key: str, data: Any, needed: str) -> RememberingError:
    try:
        shown = repr(str(data)[:60])
    except ValueError:  # Python prints integers of at most 4,300 digits
        shown = "a number of too many digits"
    return RememberingError(f"{where}: {key or 'it'} = {shown} must be {needed}")
