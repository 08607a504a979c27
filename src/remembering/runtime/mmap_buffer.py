"""Buffers with one row per image, in memory or in a memory-mapped file."""

from __future__ import annotations

import math
import os
import tempfile

import torch
from torch import Tensor

from remembering.errors import StorageError
from remembering.runtime.files import cache_dir

MEMORY_BYTES = 256 * 1024**2
"""Largest buffer, such as the features of a task, that is kept in memory. A larger one is a mapped
file, whose pages the operating system can evict."""
CHUNK_BYTES = 4 * 1024**2
"""Rows that may exceed the memory are processed in chunks of this size, in float64."""


def chunk_rows(width: int) -> int:
    """Return the number of rows of a given width in a chunk.

    >>> chunk_rows(1920), chunk_rows(10**9)
    (273, 1)
    """
    return max(1, CHUNK_BYTES // (8 * width))


class MmapBuffer:
    """A buffer of `count` rows that are written in parts, in memory or in a file.

    >>> rows = MmapBuffer(3)
    >>> rows.put(torch.tensor([0, 1]), torch.ones(2, 4))
    >>> rows.put(torch.tensor([2]), torch.zeros(1, 4))
    >>> rows.tensor.sum(1)
    tensor([4., 4., 0.])
    """

    def __init__(self, count: int):
        self.count = count
        self._tensor: Tensor | None = None

    def put(self, index: Tensor, part: Tensor) -> None:
        """Write rows at these positions; all rows have one shape and type."""
        if self._tensor is None:
            self._tensor = allocate(self.count, part)
        self._tensor[index.to(self._tensor.device)] = part.to(self._tensor.device)

    @property
    def tensor(self) -> Tensor:
        """All rows, on the device of the parts, or on the CPU if they are in a file."""
        assert self._tensor is not None, "nothing was written"
        return self._tensor


def allocate(count: int, part: Tensor) -> Tensor:
    """Return an uninitialised tensor of `count` rows like those of `part`.

    Raises:
        StorageError: If there is no space for the file.
    """
    shape = (count, *part.shape[1:])
    size = math.prod(shape) * part.element_size()
    if size <= MEMORY_BYTES:
        return part.new_empty(shape)
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The name is removed at once, so nothing is left behind however the process ends.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".rows-") as file:
            if hasattr(os, "posix_fallocate"):  # a full disk would kill the process later
                os.posix_fallocate(file.fileno(), 0, size)
            flat = torch.from_file(file.name, shared=True, size=math.prod(shape), dtype=part.dtype)
    except (OSError, RuntimeError) as error:
        raise StorageError(
            f"{size:,} bytes of working space cannot be allocated in {folder} ({error}); free "
            "space there, or set REMEMBERING_CACHE to a folder on another disk"
        ) from error
    return flat.view(shape)
