"""Read the pickle files in which CIFAR is published, without ever running what they ask for.

A pickle is a program: it names any function of any module and calls it. Here no name leads out of
this file. The few that the published files use (NumPy's array and its parts) are answered with
inert stand-ins, which only keep what they are given and check it; every other name is refused
before anything happens. NumPy is called by us alone, on bytes whose number has been checked.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from remembering.data.sources.base import reason
from remembering.errors import RememberingError


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a file: strings, whole numbers, lists, and arrays of unsigned bytes."""
    try:
        with path.open("rb") as file:
            content = _Reader(file, encoding="bytes").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it holds a {type(content).__name__}, not a dictionary")
        return {_text(key): _value(value) for key, value in content.items()}
    # A damaged file can make the reader raise almost anything, a hostile one anything at all.
    except Exception as error:
        raise RememberingError(
            f"{path} is not a data file that can be read safely ({reason(error)}); "
            "get the published file again"
        ) from error


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("numpy.core.multiarray", "_reconstruct"): _array,
            ("numpy._core.multiarray", "_reconstruct"): _array,
            ("numpy", "ndarray"): _refuse,  # only ever named as the kind of array to make
            ("numpy", "dtype"): _dtype,
            ("_codecs", "encode"): _encode,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks to run {module}.{name}")
        return _StandIn(known[module, name])


class _StandIn:
    """The answer to a name: can be called, and cannot be changed as a function could be."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]):
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it asks to change a function")


class _Dtype:
    """Stands for `numpy.dtype`; bytes have no order and no fields, so its state says nothing."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None: ...


class _Array:
    """Stands for an array that NumPy has pickled; its state holds shape and bytes."""

    __slots__ = ("values",)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, values = state
        if not (isinstance(dtype, _Dtype) and isinstance(values, bytes)):
            raise pickle.UnpicklingError("it holds an array of something other than plain bytes")
        if math.prod(shape) != len(values):
            raise pickle.UnpicklingError(f"it holds {len(values)} values for the shape {shape}")
        order: Literal["F", "C"] = "F" if fortran else "C"
        self.values = np.frombuffer(values, np.uint8).reshape(shape, order=order)


def _array(kind: Any, shape: Any, code: Any) -> _Array:
    return _Array()


def _refuse(*arguments: Any) -> None:
    raise pickle.UnpicklingError("it asks for an array in a way the published files do not")


def _dtype(code: Any, align: Any = False, copy: Any = True) -> _Dtype:
    if _text(code) != "u1":
        raise pickle.UnpicklingError(f"it holds an array of {_text(code)}, not of unsigned bytes")
    return _Dtype()


def _encode(text: str, encoding: str) -> bytes:
    # How Python 3 writes bytes in the protocols of Python 2.
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it holds bytes encoded as {encoding}")
    return text.encode("latin1")


def _text(value: Any) -> str:
    # The strings of Python 2 arrive as bytes.
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _value(value: Any) -> Any:
    return value.values if isinstance(value, _Array) else value
