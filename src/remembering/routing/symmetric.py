"""Symmetric matrices as they are kept: the upper triangle, row after row."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def packed_size(dim: int) -> int:
    """Return the number of values that are kept of a symmetric matrix (dim, dim).

    >>> packed_size(3)
    6
    """
    return dim * (dim + 1) // 2


def pack(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix as a vector."""
    return matrix.masked_select(_upper(len(matrix), matrix.device))


def unpack(packed: Tensor) -> Tensor:
    """Return the symmetric matrix of a packed upper triangle.

    >>> unpack(pack(torch.tensor([[2.0, 1.0], [1.0, 3.0]])))
    tensor([[2., 1.],
            [1., 3.]])
    """
    dim = (math.isqrt(8 * len(packed) + 1) - 1) // 2
    upper = packed.new_zeros(dim, dim)
    upper.masked_scatter_(_upper(dim, packed.device), packed)
    return upper + upper.triu(1).mT


def _upper(dim: int, device: torch.device) -> Tensor:
    return torch.ones(dim, dim, dtype=torch.bool, device=device).triu()
