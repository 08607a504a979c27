"""What a router reads of the backbone's states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.config import Tokens


def extract_features(states: Sequence[Tensor], tokens: Tokens) -> Tensor:
    """Concatenate one feature vector per state.

    Args:
        states: Backbone states, each (n, tokens, dim).
        tokens: "mean" (every token's mean over the hidden dimension) and "flat" (all tokens
            flattened) are those of section 4.1 of the paper. "pooled" is the CLS token and the
            mean of the other tokens, each normalised. "moments" is the normalised mean and the
            standard deviation over the patch tokens.

    Returns:
        Features (n, features).
    """
    return torch.cat([_READERS[tokens](state) for state in states], dim=1)


def _token_means(state: Tensor) -> Tensor:
    return state.mean(2)


def _flat(state: Tensor) -> Tensor:
    return state.flatten(1)


def _pooled(state: Tensor) -> Tensor:
    both = torch.stack([state[:, 0], state[:, 1:].mean(1)], dim=1)
    return F.layer_norm(both, both.shape[2:]).flatten(1)


def _moments(state: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(state[:, 1:], dim=1)
    return torch.cat([F.layer_norm(mean, mean.shape[1:]), deviation], dim=1)


_READERS: dict[Tokens, Callable[[Tensor], Tensor]] = {
    "mean": _token_means,
    "flat": _flat,
    "pooled": _pooled,
    "moments": _moments,
}
