"""MmapBuffer of numbers, one for each image of a task: more than fit into memory, if need be."""

from __future__ import annotations

import math
import os
import tempfile

import torch
from torch import Tensor

from remembering.errors import RememberingError
from remembering.runtime.files import cache_dir

MEMORY_BYTES = 256 * 1024**2
"""What rows of one kind, such as the features of a task, may take of a machine's memory. Larger
ones lie in a mapped file: memory holds what is in use, and gives it back when it is short."""
CHUNK_BYTES = 8 * 1024**2
"""What is worked on at once, in float64, of rows that may be too many for memory."""


def chunk_rows(width: int) -> int:
    """How many rows of so many numbers are worked on at once.

    >>> chunk_rows(1920), chunk_rows(10**9)
    (546, 1)
    """
    return max(1, CHUNK_BYTES // (8 * width))


class MmapBuffer:
    """Room for `count` rows that come in parts, in memory or in a file, whichever is fitting.

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
        """MmapBuffer at these positions, all of one shape and type."""
        if self._tensor is None:
            self._tensor = allocate(self.count, part)
        self._tensor[index.to(self._tensor.device)] = part.to(self._tensor.device)

    @property
    def tensor(self) -> Tensor:
        """All rows: where the parts were, or on the CPU if they lie in a file."""
        assert self._tensor is not None, "no rows were put"
        return self._tensor


def allocate(count: int, part: Tensor) -> Tensor:
    """An empty tensor of `count` rows like those of `part`, in memory or in a file."""
    shape = (count, *part.shape[1:])
    size = math.prod(shape) * part.element_size()
    if size <= MEMORY_BYTES:
        return part.new_empty(shape)
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The file loses its name at once, so nothing is left over however the process ends.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".rows-") as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk would kill the process later on
                os.posix_fallocate(file.fileno(), 0, size)
            flat = torch.from_file(file.name, shared=True, size=math.prod(shape), dtype=part.dtype)
    except (OSError, RuntimeError) as error:
        raise RememberingError(
            f"{size:,} bytes of working space cannot be had in {folder} ({error}); make room "
            "there, or set REMEMBERING_CACHE to a folder on another disk"
        ) from error
    return flat.view(shape)
