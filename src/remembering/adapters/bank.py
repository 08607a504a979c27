"""All adapters of a model: an immutable mapping whose entries may be read from disk on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from remembering.adapters.lora import ActiveAdapters, Adapter, MixedAdapters, OneAdapter
from remembering.errors import RememberingError


class AdapterSource(Protocol):
    """Reads a stored adapter each time it is called."""

    def __call__(self) -> Adapter: ...


class AdapterCache:
    """Adapters that were read from their sources, least recently used first. Thread-safe.

    The merged weights of the adapter that was used last are kept as well.

    Args:
        max_bytes: Upper bound on the cached adapters. If None, every adapter stays cached for as
            long as a bank refers to its source.
    """

    def __init__(self, max_bytes: int | None = None):
        if max_bytes is not None and max_bytes < 0:
            raise RememberingError(f"cache_bytes = {max_bytes} must be at least 0")
        self.max_bytes = max_bytes
        self._adapters: WeakKeyDictionary[AdapterSource, Adapter] = WeakKeyDictionary()
        self._last: OneAdapter | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[AdapterCache], tuple[int | None]]:
        """Pickle and copy an empty cache."""
        return type(self), (self.max_bytes,)

    @property
    def bytes(self) -> int:
        """Memory of the cached adapters."""
        with self._lock:
            return sum(adapter.nbytes for adapter in self._adapters.values())

    def get(self, source: AdapterSource) -> Adapter:
        """Return the adapter of a source, reading it if it is not cached."""
        with self._lock:
            adapter = self._adapters.pop(source, None) or source()
            self._adapters[source] = adapter  # now the most recently used
            self._evict(adapter.nbytes)
        return adapter

    def active(self, adapter: Adapter) -> OneAdapter:
        """Activate an adapter for all samples of a batch."""
        last = self._last
        if last is None or last.a is not adapter.a or last.b is not adapter.b:
            self._last = last = adapter.active()
        return last

    def _evict(self, one: int) -> None:
        if self.max_bytes is None:
            return
        excess = len(self._adapters) - self.max_bytes // one  # all have one size
        for source in list(self._adapters)[: max(excess, 0)]:
            del self._adapters[source]


class AdapterBank(Mapping[int, Adapter]):
    """Adapters by number. `with_adapter` and `without` return new banks that share one cache.

    All adapters of a bank have the same shape, so that a batch can mix them.

    Args:
        entries: For each number an adapter, or a source that reads it on demand.
        cache: Where adapters that were read are kept.

    >>> from remembering.backbones.backbone import Backbone
    >>> backbone = Backbone.load("bundled")
    >>> rng = torch.Generator().manual_seed(0)
    >>> adapters = [Adapter.new(backbone, rank=1, first_layer=0, rng=rng) for _ in range(2)]
    >>> bank = AdapterBank().with_adapter(0, adapters[0]).with_adapter(1, adapters[1])
    >>> tokens = backbone.embed(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))
    >>> backbone.run(tokens, adapters=bank.mixed(torch.tensor([1, 0]))).shape
    torch.Size([2, 17, 96])
    """

    def __init__(
        self,
        entries: Mapping[int, Adapter | AdapterSource] | None = None,
        cache: AdapterCache | None = None,
    ):
        self.entries = dict(entries or {})
        self.cache = cache or AdapterCache()

    def __getitem__(self, number: int) -> Adapter:
        entry = self.entries[number]
        return entry if isinstance(entry, Adapter) else self.cache.get(entry)

    def __iter__(self) -> Iterator[int]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, number: object) -> bool:
        return number in self.entries

    def with_adapter(self, number: int, adapter: Adapter | AdapterSource) -> AdapterBank:
        """Return a bank that also has this adapter, in place of one with the same number."""
        if isinstance(adapter, Adapter) and (others := [n for n in self if n != number]):
            expected = self[others[0]].shape
            if adapter.shape != expected:
                raise RememberingError(
                    f"adapter {number} of shape {adapter.shape} does not fit a bank of {expected}; "
                    "use the same rank and layers"
                )
        return AdapterBank({**self.entries, number: adapter}, self.cache)

    def without(self, number: int) -> AdapterBank:
        """Return a bank that lacks this adapter."""
        return AdapterBank({n: e for n, e in self.entries.items() if n != number}, self.cache)

    def to(self, device: torch.device) -> AdapterBank:
        """Return a bank whose adapters in memory are on another device; the cache is emptied."""
        entries = {
            number: entry.to(device) if isinstance(entry, Adapter) else entry
            for number, entry in self.entries.items()
        }
        return AdapterBank(entries, AdapterCache(self.cache.max_bytes))

    @property
    def parameters(self) -> int:
        """Number of parameters of all adapters."""
        return len(self) * self[next(iter(self))].parameters if self else 0

    def mixed(self, numbers: Tensor) -> ActiveAdapters:
        """Activate adapter `numbers[i]` for sample i of a batch."""
        used = numbers.tolist()
        adapters = {number: self[number] for number in dict.fromkeys(used)}
        first = adapters[used[0]]
        if len(adapters) == 1:
            return self.cache.active(first)
        a = torch.stack([adapters[number].a for number in used])
        b = torch.stack([adapters[number].b for number in used])
        return MixedAdapters(a, b, first.first_layer)
