"""The paper's router: one trained low-rank autoencoder per task (Eq. 1 and 2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.routing.base import Expert, Layout
from remembering.routing.reconstruction import ReconstructionRouter, linear_errors
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed


class AutoencoderRouter(ReconstructionRouter):
    """Autoencoders V̂ = G F σ(V) that minimise ℓ = (σ(V) − V̂)².

    Trained with AdamW (β = 0.9, 0.999; weight decay 0.01).

    `hidden = 0` is the two-layer form: F encodes, G decodes, both linear without bias.
    `hidden = 32` with `latent = 1` is the four-layer form of the permutation tasks: widths
    dim → 32 → 1 → 32 → dim with biases, and a ReLU after each hidden layer.

    >>> from remembering.config import RouterSettings
    >>> router = AutoencoderRouter(RouterSettings("autoencoder", epochs=1))
    >>> rng = torch.Generator().manual_seed(0)
    >>> expert = router.fit(torch.rand(20, 17), torch.arange(20) % 2, rng)
    >>> router.with_expert(0, expert).scores(torch.rand(3, 17)).shape
    torch.Size([3, 1])
    """

    def fit(
        self,
        features: Tensor,
        targets: Tensor,
        rng: torch.Generator,
        distributed: Distributed = SINGLE_PROCESS,
    ) -> Expert:
        """Fit in every process to the features of all of them: the steps are small and fast."""
        return super().fit(distributed.all_gather(features), targets, rng)

    def fit_expert(
        self, features: Tensor, rows: Tensor, rng: torch.Generator, distributed: Distributed
    ) -> Expert:
        settings = self.settings
        expert = {
            key: value.to(features.device).requires_grad_()
            for key, value in self._initial(features.shape[1], rng).items()
        }
        optimizer = torch.optim.AdamW(
            expert.values(), lr=settings.lr, betas=(0.9, 0.999), weight_decay=0.01
        )
        for _ in range(settings.epochs):
            order = rows[torch.randperm(len(rows), generator=rng).to(rows.device)]
            for batch in order.split(settings.batch_size):
                x = features[batch]
                loss = F.mse_loss(self._reconstruct(x, expert), x)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return {key: value.detach() for key, value in expert.items()}

    def expert_layout(self, dim: int) -> Layout:
        return {name: (torch.float32, shape) for name, shape, _ in self._tensors_of(dim)}

    def reconstruction_errors(self, features: Tensor, experts: Expert) -> Tensor:
        if not self.settings.hidden:
            return linear_errors(features, experts["encoder"], experts["decoder"])
        reconstruction = self._reconstruct(features, experts)  # (e, n, dim)
        return (reconstruction - features).square().mean(2).T.double()

    def encode(self, features: Tensor, expert: Expert) -> Tensor:
        if self.settings.hidden:
            features = _layer(features, expert, 1).relu()
            return _layer(features, expert, 2)
        return features @ expert["encoder"].mT

    def _reconstruct(self, x: Tensor, expert: Expert) -> Tensor:
        """Return x̂: (n, dim), or (e, n, dim) for stacked experts."""
        latent = self.encode(x, expert)
        if self.settings.hidden:
            return _layer(_layer(latent, expert, 3).relu(), expert, 4)
        return latent @ expert["decoder"].mT

    def _initial(self, dim: int, rng: torch.Generator) -> Expert:
        return {name: _uniform(shape, fan, rng) for name, shape, fan in self._tensors_of(dim)}

    def _tensors_of(self, dim: int) -> Iterator[tuple[str, tuple[int, ...], int]]:
        """Iterate over the tensors of an expert: name, shape and fan-in."""
        latent, hidden = self.settings.latent, self.settings.hidden
        if not hidden:
            yield "encoder", (latent, dim), dim
            yield "decoder", (dim, latent), latent
            return
        widths = (dim, hidden, latent, hidden, dim)
        for i, (before, after) in enumerate(pairwise(widths), start=1):
            yield f"weight{i}", (after, before), before
            yield f"bias{i}", (after,), before


def _uniform(shape: tuple[int, ...], fan_in: int, rng: torch.Generator) -> Tensor:
    """Initialise as `torch.nn.Linear` does, from an explicit generator."""
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(shape).uniform_(-bound, bound, generator=rng)


def _layer(x: Tensor, expert: Expert, i: int) -> Tensor:
    return x @ expert[f"weight{i}"].mT + expert[f"bias{i}"].unsqueeze(-2)
