"""The bank of adapters: read when they are needed, kept within a memory budget."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from remembering.adapters.lora import ActiveAdapters, Adapter, MixedAdapters
from remembering.errors import RememberingError

Source = Callable[[], Adapter]
"""Reads an adapter that is stored."""


class AdapterBank(Mapping[int, Adapter]):
    """Adapters by number. A number is never given twice, so old files stay what they were.

    One that is stored is read when it is first asked for. With a limit of `memory` bytes, those
    that were not used for longest make room, if they are stored; they are read again when needed.

    >>> from remembering.backbones.backbone import Backbone
    >>> backbone = Backbone.load("bundled")
    >>> bank = AdapterBank()
    >>> rng = torch.Generator().manual_seed(0)
    >>> bank[0] = Adapter.new(backbone, rank=1, first_layer=0, rng=rng)
    >>> bank[1] = Adapter.new(backbone, rank=1, first_layer=0, rng=rng)
    >>> tokens = backbone.embed(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))
    >>> backbone.run(tokens, adapters=bank.mixed(torch.tensor([1, 0]))).shape
    torch.Size([2, 17, 96])
    """

    def __init__(self, memory: int | None = None) -> None:
        if memory is not None and memory < 0:
            raise RememberingError(f"{memory} bytes of adapters cannot be kept; give 0 or more")
        self._memory = memory
        self._sources: dict[int, Source | None] = {}
        self._loaded: dict[int, Adapter] = {}
        """From the one that was not used for longest to the one used last."""
        self._shape: tuple[torch.Size, int] | None = None
        self._lock = threading.RLock()  # whoever only predicts may do so from several threads

    def __getitem__(self, number: int) -> Adapter:
        with self._lock:
            adapter = self._loaded.pop(number, None)
            if adapter is None:
                source = self._sources[number]
                if source is None:
                    raise KeyError(number)
                adapter = source()
                self._check_shape(number, adapter)
            self._loaded[number] = adapter
            self._make_room()
            return adapter

    def __iter__(self) -> Iterator[int]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def __contains__(self, number: object) -> bool:
        return number in self._sources

    def __setitem__(self, number: int, adapter: Adapter) -> None:
        """Add or replace an adapter; all of a bank have one shape."""
        with self._lock:
            self._check_shape(number, adapter)
            self._sources[number] = None
            self._loaded.pop(number, None)
            self._loaded[number] = adapter
            self._make_room()

    def __delitem__(self, number: int) -> None:
        with self._lock:
            del self._sources[number]
            self._loaded.pop(number, None)
            if not self._sources:
                self._shape = None

    def stored(self, number: int, source: Source) -> None:
        """From now on adapter `number`, new or known, can be read from `source`."""
        with self._lock:
            self._sources[number] = source
            self._make_room()

    def source(self, number: int) -> Source | None:
        """Where adapter `number` can be read, if it is stored."""
        return self._sources[number]

    @property
    def limited(self) -> bool:
        """Whether adapters make room for others."""
        return self._memory is not None

    @property
    def bytes(self) -> int:
        """Memory of the adapters that are in it."""
        return sum(adapter.a.nbytes + adapter.b.nbytes for adapter in self._loaded.values())

    @property
    def parameters(self) -> int:
        """Of all adapters; each has as many."""
        return len(self) * self[next(iter(self))].parameters if self else 0

    def mixed(self, numbers: Tensor) -> ActiveAdapters:
        """For a forward in which sample i uses adapter `numbers[i]`."""
        used = numbers.tolist()
        adapters = {number: self[number] for number in dict.fromkeys(used)}
        first = adapters[used[0]]
        if len(adapters) == 1:
            return first.active()
        a = torch.stack([adapters[number].a for number in used])
        b = torch.stack([adapters[number].b for number in used])
        return MixedAdapters(a, b, first.first_layer)

    def _check_shape(self, number: int, adapter: Adapter) -> None:
        shape = (adapter.a.shape, adapter.first_layer)
        if self._shape is None or list(self._sources) == [number]:
            self._shape = shape
        elif shape != self._shape:
            raise RememberingError(
                f"adapter {number} of shape {tuple(adapter.a.shape)} does not fit a bank of "
                f"{tuple(self._shape[0])}; use the same rank and layers"
            )

    def _make_room(self) -> None:
        """Drop stored adapters, the one not used for longest first, down to the limit."""
        if self._memory is None or not self._loaded:
            return
        one = next(iter(self._loaded.values()))  # all have one size
        excess = len(self._loaded) - self._memory // (one.a.nbytes + one.b.nbytes)
        stored = (number for number in self._loaded if self._sources[number] is not None)
        for number in list(itertools.islice(stored, max(excess, 0))):
            del self._loaded[number]
