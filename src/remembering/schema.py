"""Strict reading of typed settings from JSON or TOML: wrong types and unknown keys are refused."""

from __future__ import annotations

import dataclasses
import difflib
import types
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from remembering.errors import RememberingError

T = TypeVar("T")


def read(kind: type[T], data: Any, where: str) -> T:
    """Build a dataclass from a mapping; keys that are missing take their defaults.

    >>> from remembering.config import RouterSettings
    >>> read(RouterSettings, {"kind": "subspace", "layers": [0, 2]}, "config.toml").layers
    (0, 2)
    """
    result: T = _value(kind, data, where, "")
    return result


def write(settings: Any) -> dict[str, Any]:
    """The mapping that `read` turns back into the same; None is left out, as TOML has none."""
    result = {}
    for item in dataclasses.fields(settings):
        value = getattr(settings, item.name)
        if dataclasses.is_dataclass(value):
            value = write(value)
        elif isinstance(value, tuple):
            value = list(value)
        if value is not None:
            result[item.name] = value
    return result


def check(settings: Any, where: str, prefix: str = "") -> None:
    """Refuse what `read` would refuse in a dataclass made in Python, where nothing looks at types.

    Numbers of NumPy and torch become Python's, which JSON and TOML can write.
    """
    made: Any = type(settings)
    for name, kind in _hints(made).items():
        value = _value(kind, getattr(settings, name), where, _join(prefix, name))
        object.__setattr__(settings, name, value)


def _value(kind: Any, data: Any, where: str, key: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    data = data.tolist() if hasattr(data, "tolist") else data
    if dataclasses.is_dataclass(kind):
        return data if type(data) is kind else _dataclass(kind, data, where, key)
    if origin in (Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        options = [option for option in arguments if option is not type(None)]
        for option in options[:-1]:
            try:
                return _value(option, data, where, key)
            except RememberingError:
                continue
        return _value(options[-1], data, where, key)
    if origin is Literal:
        if data not in arguments:
            raise _wrong(where, key, data, "one of " + ", ".join(map(repr, arguments)))
        return data
    if origin is tuple and isinstance(data, list | tuple):
        return tuple(_value(arguments[0], item, where, key) for item in data)
    if origin is dict and isinstance(data, dict):
        return {str(k): _value(arguments[1], v, where, f"{key}.{k}") for k, v in data.items()}
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        if abs(data) < 1e300:  # neither NaN nor infinite, nor an integer that overflows
            return float(data)
        raise _wrong(where, key, data, "a finite number")
    if kind is Any or (isinstance(kind, type) and type(data) is kind):
        return data
    raise _wrong(where, key, data, f"of type {getattr(origin or kind, '__name__', kind)}")


def _dataclass(kind: Any, data: Any, where: str, prefix: str) -> Any:
    if not isinstance(data, dict):
        raise _wrong(where, prefix, data, "a table of settings")
    hints = _hints(kind)
    names = [item.name for item in dataclasses.fields(kind) if item.init]
    for key in data:
        if key not in names:
            close = difflib.get_close_matches(str(key), names, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(names)}"
            raise RememberingError(f"{where}: unknown setting '{_join(prefix, key)}'; {hint}")
    values = {k: _value(hints[k], v, where, _join(prefix, k)) for k, v in data.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise RememberingError(f"{where}: {error}") from error
    except RememberingError as error:
        raise RememberingError(f"{where}: {error}") from error


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _join(prefix: str, key: object) -> str:
    return f"{prefix}.{key}" if prefix else str(key)


def _wrong(where: str, key: str, data: Any, wanted: str) -> RememberingError:
    return RememberingError(f"{where}: {key or 'it'} = {str(data)[:60]!r} must be {wanted}")
