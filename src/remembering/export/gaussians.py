"""Class Gaussians in an exported graph: one or several routers on the same features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from remembering.export.p_values import PValues
from remembering.routing.class_gaussians import ClassGaussians


class GaussianTables(nn.Module):
    """The class Gaussians of several adapters, or those of a router alone.

    Everything refers to the centre m of the images of an adapter, so that distances are differences
    of small numbers: ‖x − μ‖² = ‖d‖² − 2 l with d = x − m, l = d·(μ − m) − ‖μ − m‖² / 2 and all
    norms and products those of Σ⁻¹.

    Args:
        gaussians: One for each adapter.
        columns: For each adapter, the positions of its classes among all columns.
    """

    weight: Tensor
    bias: Tensor
    temperature: Tensor
    correction: Tensor | None
    owner: Tensor
    centre: Tensor
    factors: Tensor
    diagonal: Tensor

    def __init__(self, gaussians: Sequence[ClassGaussians], columns: Sequence[Tensor]):
        super().__init__()
        count, dim = sum(map(len, columns)), gaussians[0].means.shape[1]
        weight, correction = torch.zeros(count, dim).double(), torch.zeros(count, dim + 1).double()
        bias, temperature = torch.zeros(count).double(), torch.zeros(count).double()
        owner = torch.zeros(count, dtype=torch.long)
        centres, factors, diagonals = [], [], []
        for position, (own, rows) in enumerate(zip(gaussians, columns, strict=True)):
            background, centre = own.background
            whitened = own.covariance.whiten(own.means - centre)
            weight[rows] = whitened @ own.covariance.factor
            bias[rows] = -0.5 * whitened.square().sum(1) - weight[rows] @ centre
            temperature[rows] = own.temperature
            owner[rows] = position
            if own.logit_correction is not None:
                correction[rows] = own.logit_correction
            # Two lower triangular matrices in one, the second above the diagonal.
            factors.append(own.covariance.factor.tril() + background.factor.tril(-1).mT)
            diagonals.append(background.factor.diagonal())
            centres.append(centre)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.register_buffer("temperature", temperature)
        self.register_buffer("correction", correction if correction.any() else None)
        self.register_buffer("owner", owner)
        self.register_buffer("centre", torch.stack(centres))
        self.register_buffer("factors", torch.stack(factors).float())
        self.register_buffer("diagonal", torch.stack(diagonals).float())
        calibration = [own.calibration_scores for own in gaussians]
        self.calibration = PValues(calibration, gaussians[0].min_spread)

    def likelihoods(self, features: Tensor) -> Tensor:
        """Return l (n, columns), in float64."""
        return features.double() @ self.weight.mT + self.bias

    def logits(self, features: Tensor, likelihoods: Tensor) -> Tensor:
        """Return logits (n, columns) up to a constant for each image and adapter."""
        logits = likelihoods / self.temperature
        if self.correction is None:
            return logits
        x, correction = features.double(), self.correction
        return logits + x @ correction[:, :-1].mT + correction[:, -1]

    def p_values(self, features: Tensor, likelihoods: Tensor, adapters: Tensor) -> Tensor:
        """Return p-values (n,), each under the Gaussians of the image's adapter.

        The matrices are those of all adapters: an image under each of them costs less than a copy
        of its matrix for each image.
        """
        d = (features - self.centre[:, None]).float()  # (adapters, n, dim)
        within = (d @ self.factors.tril().mT).double().square().sum(2)
        outside = d @ self.factors.triu(1) + d * self.diagonal[:, None]
        norms = (within - outside.double().square().sum(2)).mT.gather(1, adapters[:, None])
        foreign = self.owner != adapters[:, None]
        nearest = likelihoods.masked_fill(foreign, -torch.inf).amax(1, keepdim=True)
        scores = (norms - 2 * nearest).expand(-1, self.centre.shape[0])
        p_values: Tensor = self.calibration(scores)
        return p_values.gather(1, adapters[:, None])[:, 0]
