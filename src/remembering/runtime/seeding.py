"""Random numbers keyed by seed and purpose, independent of anything drawn before.

Each purpose has its own generator, so that a run that is resumed, or that draws more numbers for
one purpose, draws the same numbers for all others.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from remembering.errors import InvalidInputError


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a torch generator for a seed and a purpose."""
    state = np.random.SeedSequence(_key(seed, purpose)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) % 2**63)


def permutation(size: int, seed: int, *purpose: str | int) -> Tensor:
    """Return a random permutation of `size` items for a seed and a purpose."""
    return torch.from_numpy(np.random.default_rng(_key(seed, purpose)).permutation(size))


def uniform(size: int, seed: int, *purpose: str | int) -> list[float]:
    """Return `size` numbers in [0, 1) for a seed and a purpose."""
    numbers: list[float] = np.random.default_rng(_key(seed, purpose)).random(size).tolist()
    return numbers


def _key(seed: int, purpose: tuple[str | int, ...]) -> list[int]:
    if seed < 0:
        raise InvalidInputError(f"seed = {seed} must be at least 0")
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in purpose]
    return [seed, *words]
