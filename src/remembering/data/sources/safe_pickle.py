"""Read the pickle files in which CIFAR is published, without executing anything in them.

A pickle is a program that can import and call any function. Here, no name is imported. The few
names that the published files use (NumPy's array and its parts) resolve to inert stand-ins, which
only store and check their arguments; every other name is an error. NumPy is called by this module
alone, on bytes whose number has been checked.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from remembering.errors import InvalidFileError, reason
from remembering.runtime.reading import open_regular

MAX_BYTES = 1024**3


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a dictionary of strings, integers, lists, and arrays of unsigned bytes.

    Raises:
        InvalidFileError: If the file is damaged, or has any other content.
    """
    file = open_regular(path, MAX_BYTES)
    try:
        with file:
            content = _Reader(file, encoding="bytes").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it is a {type(content).__name__}, not a dictionary")
        return {_text(key): _value(value) for key, value in content.items()}
    # A damaged or hostile file can make the reader raise anything.
    except Exception as error:
        raise InvalidFileError(
            f"{path} is not a data file that can be read safely ({reason(error)}); "
            "download the published file again"
        ) from error


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("numpy.core.multiarray", "_reconstruct"): _array,
            ("numpy._core.multiarray", "_reconstruct"): _array,
            ("numpy", "ndarray"): _refuse,  # only named as the type of array
            ("numpy", "dtype"): _dtype,
            ("_codecs", "encode"): _encode,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it calls {module}.{name}")
        return _StandIn(known[module, name])


class _StandIn:
    """What a name resolves to: callable, and without attributes that a pickle could set."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]):
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it modifies a function")


class _Dtype:
    """Stand-in for `numpy.dtype`; bytes have no order and no fields, so its state is ignored."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None: ...


class _Array:
    """Stand-in for a pickled NumPy array; its state has the shape and the bytes."""

    __slots__ = ("values",)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, values = state
        if not (isinstance(dtype, _Dtype) and isinstance(values, bytes)):
            raise pickle.UnpicklingError("it has an array of something other than bytes")
        if math.prod(shape) != len(values):
            raise pickle.UnpicklingError(f"it has {len(values)} values for the shape {shape}")
        order: Literal["F", "C"] = "F" if fortran else "C"
        self.values = np.frombuffer(values, np.uint8).reshape(shape, order=order)


def _array(kind: Any, shape: Any, code: Any) -> _Array:
    return _Array()


def _refuse(*arguments: Any) -> None:
    raise pickle.UnpicklingError("it creates an array in another way than the published files")


def _dtype(code: Any, align: Any = False, copy: Any = True) -> _Dtype:
    if _text(code) != "u1":
        raise pickle.UnpicklingError(f"it has an array of {_text(code)}, not of unsigned bytes")
    return _Dtype()


def _encode(text: str, encoding: str) -> bytes:
    # Python 3 writes bytes like this in the protocols of Python 2.
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes encoded as {encoding}")
    return text.encode("latin1")


def _text(value: Any) -> str:
    # Strings of Python 2 are read as bytes.
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _value(value: Any) -> Any:
    return value.values if isinstance(value, _Array) else value
