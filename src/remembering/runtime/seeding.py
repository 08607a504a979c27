"""Random numbers that depend on what they are for, and on nothing drawn before.

Each purpose has numbers of its own, so that a run that goes on after a stop, or draws more of one
thing, draws the same of everything else.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from remembering.errors import RememberingError


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A torch generator fixed by the seed and by what it is for."""
    state = np.random.SeedSequence(_key(seed, purpose)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) % 2**63)


def permutation(size: int, seed: int, *purpose: str | int) -> Tensor:
    """A random order of `size` things, fixed by the seed and by what it is for."""
    return torch.from_numpy(np.random.default_rng(_key(seed, purpose)).permutation(size))


def uniform(size: int, seed: int, *purpose: str | int) -> list[float]:
    """Numbers from 0 to 1, fixed by the seed and by what they are for."""
    numbers: list[float] = np.random.default_rng(_key(seed, purpose)).random(size).tolist()
    return numbers


def _key(seed: int, purpose: tuple[str | int, ...]) -> list[int]:
    if seed < 0:
        raise RememberingError(f"the seed is {seed}; give a whole number that is not negative")
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in purpose]
    return [seed, *words]
