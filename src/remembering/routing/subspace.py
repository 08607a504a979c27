"""The closed-form optimum of the paper's linear autoencoder."""

from __future__ import annotations

import torch
from torch import Tensor

from remembering.errors import RememberingError
from remembering.routing.base import Expert, Layout
from remembering.routing.reconstruction import ReconstructionRouter, linear_errors
from remembering.runtime.distributed import Distributed
from remembering.runtime.mmap_buffer import chunk_rows

# eigh of a (dim, dim) matrix in float64: beyond this, minutes and gigabytes.
MAX_DIM = 4096
MAX_ITERATIONS, TOLERANCE = 20, 1e-12


class SubspaceRouter(ReconstructionRouter):
    """Experts that project onto the top eigenspace of their task's second moments.

    argmin over G, F of Σ‖x − G F x‖² is F = Uᵀ, G = U with U the eigenvectors of Σ x xᵀ with the
    largest eigenvalues (Eckart and Young, 1936). One exact pass over the data without a
    learning rate; the sums are additive over batches and processes.
    """

    def fit_expert(
        self, features: Tensor, rows: Tensor, rng: torch.Generator, distributed: Distributed
    ) -> Expert:
        return self._expert(distributed.all_reduce(_second_moments(features, rows)))

    def fit_with_trial(
        self, features: Tensor, held_out: Tensor, rng: torch.Generator, distributed: Distributed
    ) -> tuple[Expert, Expert]:
        """Fit both experts from the same sums, reading each row once."""
        rows = torch.arange(len(features), device=features.device)
        rest = distributed.all_reduce(_second_moments(features, rows[~held_out]))
        everything = rest + distributed.all_reduce(_second_moments(features, rows[held_out]))
        return self._expert(rest), self._expert(everything)

    def expert_layout(self, dim: int) -> Layout:
        return {"basis": (torch.float32, (dim, min(self.settings.latent, dim)))}

    def _expert(self, moments: Tensor) -> Expert:
        basis = top_eigenvectors(moments, min(self.settings.latent, len(moments)))
        # The sign of an eigenvector is arbitrary: fix it, so that equal data give equal bits.
        basis = basis * basis.sum(0).sign().masked_fill(basis.sum(0) == 0, 1)
        return {"basis": basis.float().contiguous()}

    def reconstruction_errors(self, features: Tensor, experts: Expert) -> Tensor:
        basis = experts["basis"]
        return linear_errors(features, basis.mT, basis)

    def encode(self, features: Tensor, expert: Expert) -> Tensor:
        return features @ expert["basis"]


def _second_moments(features: Tensor, rows: Tensor) -> Tensor:
    """Return Σ x xᵀ over some rows of the features: (dim, dim)."""
    dim = features.shape[1]
    if dim > MAX_DIM:
        raise RememberingError(
            f"the subspace router on {dim} features is too large; use router.tokens = "
            '"mean", fewer router.layers, or router.kind = "autoencoder"'
        )
    moments = torch.zeros(dim, dim, dtype=torch.float64, device=features.device)
    for chunk in rows.split(chunk_rows(dim)):
        x = features[chunk]
        moments += x.mT @ x  # products of a few in float32, their sum in float64
    return moments


def top_eigenvectors(matrix: Tensor, count: int) -> Tensor:
    """Return the eigenvectors of the largest eigenvalues, largest first: (dim, count).

    Orthogonal iteration with Rayleigh-Ritz projection converges in a few steps if the leading
    eigenvalues are well separated; otherwise the full eigendecomposition is computed.
    """
    block = 2 * count + 8
    if block < len(matrix) // 8:
        rng = torch.Generator().manual_seed(0)
        start = torch.randn(len(matrix), block, generator=rng, dtype=matrix.dtype)
        basis: Tensor = start.to(matrix.device)
        for _ in range(MAX_ITERATIONS):
            basis = torch.linalg.qr(matrix @ basis).Q
            image = matrix @ basis
            values, rotation = torch.linalg.eigh(basis.mT @ image)  # ascending
            basis, image = basis @ rotation, image @ rotation
            residual = (image - basis * values)[:, -count:].norm(dim=0)
            if residual.max() <= TOLERANCE * values[-1]:
                return basis[:, -count:].flip(1)
    vectors: Tensor = torch.linalg.eigh(matrix).eigenvectors
    return vectors[:, -count:].flip(1)
