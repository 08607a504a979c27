"""Calibration: from scores on held-out images to p-values."""

from __future__ import annotations

import torch
from scipy.stats import t as student_t  # type: ignore[import-untyped]
from torch import Tensor

MIN_CONFORMAL = 20
"""With fewer calibration scores than this, their distribution is taken to be normal."""


def p_values(scores: Tensor, calibration_scores: Tensor, min_spread: float = 1e-12) -> Tensor:
    """Return p-values of the hypothesis that a score comes from the same distribution.

    The p-value is the share of calibration scores that are at least as high, counting the score
    itself: at most α with a probability of at most α, whatever the distribution is (Vovk et al.,
    2005). It cannot be below 1 / (count + 1), so few calibration scores could never flag anything;
    then it is the tail of the predictive t-distribution of normal scores.

    Args:
        scores: (n,); the higher, the more novel.
        calibration_scores: Sorted scores of images that the model was not fitted to.
        min_spread: Lower bound on the standard deviation of few calibration scores, which may be
            alike by chance.
    """
    count = len(calibration_scores)
    if 2 <= count < MIN_CONFORMAL:
        error = calibration_scores.std().clamp_min(min_spread) * (1 + 1 / count) ** 0.5
        deviations = ((scores - calibration_scores.mean()) / error).cpu()
        return torch.from_numpy(student_t.sf(deviations.numpy(), count - 1)).to(scores.device)
    lower = torch.searchsorted(calibration_scores, scores)
    return (count - lower + 1).double() / (count + 1)
