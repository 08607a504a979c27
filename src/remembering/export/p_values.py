"""`routing.calibration.p_values` for several sets of calibration scores, in exportable operations.

ONNX has neither a sorted search nor the t-distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from remembering.routing.calibration import MIN_CONFORMAL

_NODES = 64
"""Nodes of the quadrature; with 18 degrees of freedom its relative error is below 1e-12."""


class PValues(nn.Module):
    """p-values of scores, each under the calibration scores of its column.

    Few calibration scores are taken to be normal; the tail of Student's t-distribution with ν
    degrees of freedom is P(T > t) = c ∫₀ᵘ sinᵛ⁻¹φ dφ with cot u = t / √ν and
    c = Γ((ν + 1) / 2) / (√π Γ(ν / 2)), by Gauss-Legendre quadrature.

    Args:
        calibration_scores: For each column, sorted scores.
        min_spread: See `routing.calibration.p_values`.
    """

    scores: Tensor
    counts: Tensor
    few: Tensor
    mean: Tensor
    error: Tensor
    freedom: Tensor
    factor: Tensor
    nodes: Tensor
    weights: Tensor

    def __init__(self, calibration_scores: Sequence[Tensor], min_spread: float = 1e-12):
        super().__init__()
        counts = [len(scores) for scores in calibration_scores]
        padded = torch.full((len(counts), max([1, *counts])), torch.inf, dtype=torch.float64)
        for row, scores in zip(padded, calibration_scores, strict=True):
            row[: len(scores)] = scores
        few = [2 <= count < MIN_CONFORMAL for count in counts]
        self.has_few = any(few)
        used = [
            scores if is_few else torch.zeros(2, dtype=torch.float64)
            for scores, is_few in zip(calibration_scores, few, strict=True)
        ]
        error = [x.std().clamp_min(min_spread) * (1 + 1 / len(x)) ** 0.5 for x in used]
        freedom = [len(x) - 1 for x in used]
        factor = [math.gamma((v + 1) / 2) / math.gamma(v / 2) / math.pi**0.5 for v in freedom]
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        self.register_buffer("scores", padded)
        self.register_buffer("counts", torch.tensor(counts))
        self.register_buffer("few", torch.tensor(few))
        self.register_buffer("mean", torch.stack([x.mean() for x in used]))
        self.register_buffer("error", torch.stack(error))
        self.register_buffer("freedom", torch.tensor(freedom, dtype=torch.float64))
        self.register_buffer("factor", torch.tensor(factor, dtype=torch.float64))
        self.register_buffer("nodes", torch.from_numpy((nodes + 1) / 2))
        self.register_buffer("weights", torch.from_numpy(weights / 2))

    @property
    def step(self) -> float:
        """The largest distance between two p-values that a score may have; 0 if continuous."""
        steps = 1 / (self.counts[~self.few] + 1)
        return float(steps.max()) if len(steps) else 0.0

    def forward(self, scores: Tensor) -> Tensor:
        """Return p-values (n, columns) of scores (n, columns)."""
        lower = (self.scores < scores[:, :, None]).long().sum(2)
        conformal = (self.counts - lower + 1).double() / (self.counts + 1)
        if not self.has_few:
            return conformal
        t = (scores - self.mean) / self.error
        # onnxruntime has atan for float32 only. It is accurate here, because it is not subtracted.
        ratio = self.freedom.sqrt() / (t + (self.freedom + t.square()).sqrt())
        upper = 2 * ratio.float().atan().double()[:, :, None]
        heights = (upper * self.nodes).sin() ** (self.freedom[:, None] - 1)
        tail = self.factor * upper[:, :, 0] * (heights * self.weights).sum(2)
        return torch.where(self.few, tail.clamp(max=1), conformal)
