"""The closed-form optimum of the paper's linear autoencoder."""

from __future__ import annotations

import torch
from torch import Tensor

from remembering.engine import Engine
from remembering.errors import RememberingError
from remembering.routers.base import Expert, ReconstructionRouter, linear_errors
from remembering.rows import chunk_rows

# eigh of a (dim, dim) matrix in float64: beyond this, minutes and gigabytes.
MAX_DIM = 4096


class SubspaceRouter(ReconstructionRouter):
    """The top eigenspace of a task's second moments.

    argmin over G, F of Σ‖x − G F x‖² is F = Uᵀ, G = U with U the eigenvectors of Σ x xᵀ with the
    largest eigenvalues (Eckart and Young, 1936). One pass over the data, exact, no learning rate;
    the sums add up across batches and processes.
    """

    def fit_expert(
        self, features: Tensor, rows: Tensor, rng: torch.Generator, engine: Engine
    ) -> Expert:
        dim = features.shape[1]
        if dim > MAX_DIM:
            raise RememberingError(
                f"the subspace router on {dim} features is too large; use router.tokens = "
                '"mean", fewer router.layers, or router.kind = "autoencoder"'
            )
        _, vectors = torch.linalg.eigh(engine.total(_second_moments(features, rows)))  # ascending
        basis = vectors[:, -min(self.settings.latent, dim) :].flip(1)
        # The sign of an eigenvector is arbitrary: fix it, so that equal data give equal bits.
        basis = basis * basis.sum(0).sign().masked_fill(basis.sum(0) == 0, 1)
        return {"basis": basis.float().contiguous()}

    def errors(self, features: Tensor, experts: Expert) -> Tensor:
        basis = experts["basis"]
        return linear_errors(features, basis.mT, basis)

    def encode(self, features: Tensor, expert: Expert) -> Tensor:
        return features @ expert["basis"]


def _second_moments(features: Tensor, rows: Tensor) -> Tensor:
    """Σ x xᵀ over some rows of the features: (dim, dim)."""
    dim = features.shape[1]
    moments = torch.zeros(dim, dim, dtype=torch.float64, device=features.device)
    for chunk in rows.split(chunk_rows(dim)):
        x = features[chunk].double()
        moments.addmm_(x.mT, x)
    return moments
