"""Shares: what a single task added to the statistics that all tasks have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from remembering.routing.base import Expert, check_layout
from remembering.routing.symmetric import (
    check_compressed,
    compress,
    compressed_layout,
    kept_scatter,
    restore,
)

PARTS = ("router", "classifier")
"""The scatter of the router, and that of the classifier of the task's adapter."""
Parts = Mapping[str, Expert]


class ShareSource(Protocol):
    """Reads a stored share each time it is called."""

    @property
    def nbytes(self) -> int: ...

    @property
    def dims(self) -> Mapping[str, int]: ...

    def __call__(self) -> Parts: ...


@dataclass(frozen=True, eq=False)
class Share:
    """What a task added to shared scatter matrices, so that `forget` can subtract it.

    Attributes:
        source: The scatter matrices by `PARTS`, as `routing.symmetric` keeps them, or what reads
            them on demand: nothing but `forget` and `refine` needs them.
    """

    source: Parts | ShareSource

    @classmethod
    def of(cls, **experts: Expert | None) -> Share:
        """Keep the scatter matrices of fitted experts; those that are None do not exist."""
        parts = {k: kept_scatter(v) for k, v in experts.items() if v is not None}
        return cls({k: {name: v.cpu() for name, v in part.items()} for k, part in parts.items()})

    def plus(self, **scatters: Tensor | None) -> Share:
        """Return the share with more added to some of its parts."""
        parts = self.parts
        added = {k: v.cpu() for k, v in scatters.items() if v is not None and k in parts}
        sums = {k: compress(restore(parts[k]).add_(v)) for k, v in added.items()}
        return Share({**parts, **sums})

    def scaled(self, factors: Mapping[str, float]) -> Share:
        """Return the share with scatter matrices multiplied by a factor each."""
        parts = {
            name: {**part, "spread": part["spread"] * factors[name] ** 0.5}
            for name, part in self.parts.items()
        }
        return Share(parts)

    @property
    def parts(self) -> Parts:
        """The scatter matrices; a part that the model does not have is missing."""
        return self.source if isinstance(self.source, Mapping) else self.source()

    @property
    def dims(self) -> Mapping[str, int]:
        """Number of features of each part."""
        source = self.source
        return share_dims(source) if isinstance(source, Mapping) else source.dims

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        source = self.source
        return share_bytes(source) if isinstance(source, Mapping) else source.nbytes


def share_dims(parts: Parts) -> dict[str, int]:
    """Return the number of features of each part."""
    return {name: len(part["spread"]) for name, part in parts.items()}


def share_bytes(parts: Parts) -> int:
    """Return the bytes of all parts."""
    return sum(tensor.nbytes for part in parts.values() for tensor in part.values())


def check_share(parts: Parts) -> None:
    """Raise ValueError unless the parts, read from a file, are scatter matrices."""
    if not parts or not set(parts) <= set(PARTS):
        raise ValueError("it does not contain the scatter of a router or a classifier")
    for part in parts.values():
        check_layout(part, compressed_layout(part["spread"].numel() if "spread" in part else 0))
        check_compressed(part)
