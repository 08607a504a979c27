"""How much must be kept, counted two ways."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Footprint:
    """Parameters and bytes that a model keeps beside its frozen backbone.

    `adapters` alone is the paper's number: 4 · L · 2D · r for each. `total_parameters` is
    everything that is needed to answer; replay images are bytes and are counted apart. `bytes` is
    all of it as it is stored: numbers of two, four or eight bytes, and replay images.
    """

    adapters: int
    heads: int
    routers: int
    replay_bytes: int
    bytes: int

    @property
    def total_parameters(self) -> int:
        """Adapters, heads and routers."""
        return self.adapters + self.heads + self.routers

    def as_dict(self) -> dict[str, int]:
        """For results.json."""
        return {**asdict(self), "total_parameters": self.total_parameters}
