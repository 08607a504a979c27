"""Routers whose experts reconstruct their input: the paper's autoencoder and its closed form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from remembering.config import RouterSettings
from remembering.routing.base import Expert, Layout, Router
from remembering.routing.calibration import p_values
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.mmap_buffer import chunk_rows

HOLD_OUT_EVERY = 5
"""One image in this many calibrates the p-values."""
CALIBRATION = "calibration_scores"


class ReconstructionRouter(Router):
    """Experts that reconstruct σ(V); the score is the reconstruction error."""

    score_name = "reconstruction error"
    settings: RouterSettings

    @abstractmethod
    def fit_expert(
        self, features: Tensor, rows: Tensor, rng: torch.Generator, distributed: Distributed
    ) -> Expert:
        """Fit an expert to some rows of the features (n, dim) of one task, ignoring labels.

        The features may not fit into memory, so implementations read a few rows at a time. Each
        process has its own features; implementations reduce over all of them.
        """

    @abstractmethod
    def reconstruction_errors(self, features: Tensor, experts: Expert) -> Tensor:
        """Return errors (n, e) of features (n, dim) under e experts stacked along a new axis 0."""

    def fit_with_trial(
        self, features: Tensor, held_out: Tensor, rng: torch.Generator, distributed: Distributed
    ) -> tuple[Expert, Expert]:
        """Fit one expert without the held-out rows, and one to all rows, otherwise alike.

        Args:
            features: (n, dim).
            held_out: Mask (n,).
            rng: Source of random numbers.
            distributed: The processes that fit together.
        """
        rows = torch.arange(len(features), device=features.device)
        trial = self.fit_expert(features, rows[~held_out], _copy(rng), distributed)
        return trial, self.fit_expert(features, rows, rng, distributed)

    def features(self, states: Sequence[Tensor]) -> Tensor:
        """Return σ(V), in (0, 1)."""
        return super().features(states).sigmoid()

    def fit(
        self,
        features: Tensor,
        targets: Tensor,
        rng: torch.Generator,
        distributed: Distributed = SINGLE_PROCESS,
    ) -> Expert:
        """Fit to all images; every fifth is held out once to calibrate the p-values."""
        rows = torch.arange(len(features), device=features.device)
        held_out = (distributed.start(len(features)) + rows) % HOLD_OUT_EVERY == 0
        trial, expert = self.fit_with_trial(features, held_out, rng, distributed)
        stacked = {key: value[None] for key, value in trial.items()}
        chunks = rows[held_out].split(chunk_rows(features.shape[1]))
        errors = [self.reconstruction_errors(features[chunk], stacked)[:, 0] for chunk in chunks]
        calibration = distributed.all_gather(torch.cat(errors)).sort().values
        return {**expert, CALIBRATION: calibration}

    def layout(self, dim: int, classes: int) -> Layout:
        return {**self.expert_layout(dim), CALIBRATION: (torch.float64, (None,))}

    @abstractmethod
    def expert_layout(self, dim: int) -> Layout:
        """Return the layout of what `fit_expert` returns."""

    def scores(self, features: Tensor) -> Tensor:
        return self.reconstruction_errors(features, self._stacked)

    def ood_scores(self, features: Tensor) -> Tensor:
        """Return the lowest error over tasks, each relative to the task's median error."""
        medians = torch.stack([expert[CALIBRATION].median() for expert in self.experts.values()])
        return (self.scores(features) / medians).min(1).values

    def novelty(self, features: Tensor) -> Tensor:
        """Return the highest p-value over tasks."""
        found = [
            p_values(scores, expert[CALIBRATION])
            for scores, expert in zip(
                self.scores(features).mT.contiguous(), self.experts.values(), strict=True
            )
        ]
        return torch.stack(found).max(0).values

    @cached_property
    def _stacked(self) -> Expert:
        experts = list(self.experts.values())
        return {
            key: torch.stack([expert[key] for expert in experts])
            for key in experts[0]
            if key != CALIBRATION
        }


def linear_errors(features: Tensor, encoders: Tensor, decoders: Tensor) -> Tensor:
    """Return the mean squared error of x against G F x for e linear autoencoders: (n, e).

    ‖x − G z‖² = ‖x‖² − 2 (Gᵀx)·z + zᵀ(GᵀG)z with z = F x avoids an (n, e, dim) tensor. The terms
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


def _copy(rng: torch.Generator) -> torch.Generator:
    copy = torch.Generator()
    copy.set_state(rng.get_state())
    return copy
