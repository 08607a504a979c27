"""Who knows this input: the contract of every router.

A router keeps one small generative model, an *expert*, per task. An expert is a dictionary of
tensors, so that routers of all kinds are stored, moved and stacked alike. The lower its error, the
more familiar the input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from remembering.config import RouterSettings

Expert = dict[str, Tensor]


class Router(ABC):
    """Scores inputs against the experts of all tasks in one batched operation.

    To add a router, subclass this, write `fit`, `errors` and `encode`, and name the class in
    `remembering.routers.ROUTERS`; `tests/routers/test_routers.py` then runs on it.
    """

    def __init__(self, settings: RouterSettings):
        self.settings = settings
        self.experts: dict[int, Expert] = {}
        self._stacked: Expert | None = None

    @abstractmethod
    def fit(self, features: Tensor, rng: torch.Generator) -> Expert:
        """Fit an expert to the features (n, dim) of one task. It is not added yet."""

    @abstractmethod
    def errors(self, features: Tensor, experts: Expert) -> Tensor:
        """Errors (n, e) of features (n, dim) under e experts stacked along a new first axis."""

    @abstractmethod
    def encode(self, features: Tensor, expert: Expert) -> Tensor:
        """Latent representation (n, latent) of the features under one expert, for herding."""

    def features(self, states: Sequence[Tensor]) -> Tensor:
        """What experts see of the backbone's states (each (n, tokens, dim)): σ(V), in (0, 1).

        V is each token's mean over the hidden dimension, or all tokens flattened (paper,
        section 4.1); several states stand side by side.
        """
        flat = self.settings.tokens == "flat"
        return torch.cat([s.flatten(1) if flat else s.mean(2) for s in states], dim=1).sigmoid()

    def add(self, task: int, expert: Expert) -> None:
        """Keep an expert as that of a task."""
        self.experts[task] = expert
        self._stacked = None

    def remove(self, task: int) -> None:
        """Drop the expert of a task."""
        del self.experts[task]
        self._stacked = None

    def score(self, features: Tensor) -> Tensor:
        """Errors (n, tasks) under the experts of all tasks, in the order they were added."""
        if self._stacked is None:
            experts = list(self.experts.values())
            self._stacked = {key: torch.stack([e[key] for e in experts]) for key in experts[0]}
        return self.errors(features, self._stacked)

    @property
    def parameters(self) -> int:
        """Numbers that must be kept for all experts."""
        return sum(t.numel() for expert in self.experts.values() for t in expert.values())


def linear_errors(features: Tensor, encoders: Tensor, decoders: Tensor) -> Tensor:
    """Mean squared error of x against G F x for e linear autoencoders: (n, e).

    ‖x − G z‖² = ‖x‖² − 2 (Gᵀx)·z + zᵀ(GᵀG)z with z = F x needs no (n, e, dim) tensor. The terms
    nearly cancel where the reconstruction is good, hence float64.

    Args:
        features: x, (n, dim).
        encoders: F, (e, latent, dim).
        decoders: G, (e, dim, latent).
    """
    x, F, G = features.double(), encoders.double(), decoders.double()
    z = torch.einsum("nd,esd->nes", x, F)
    y = torch.einsum("nd,eds->nes", x, G)
    reconstruction = torch.einsum("nes,est,net->ne", z, G.mT @ G, z)
    squared = x.square().sum(1, keepdim=True) - 2 * (y * z).sum(2) + reconstruction
    return squared / x.shape[1]
