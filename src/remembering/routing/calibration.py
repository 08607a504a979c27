"""Calibration: from scores on held-out images to p-values."""

from __future__ import annotations

import torch
from torch import Tensor


def conformal_p_values(scores: Tensor, calibration_scores: Tensor) -> Tensor:
    """Return the share of calibration scores that are at least as high, counting the image itself.

    For an image drawn from the same distribution as the calibration images, the p-value is at most
    α with a probability of at most α, whatever the scores are (Vovk et al., 2005).

    Args:
        scores: (n,); the higher, the more novel.
        calibration_scores: Sorted scores of images that the model was not fitted to.
    """
    lower = torch.searchsorted(calibration_scores, scores)
    count = len(calibration_scores)
    return (count - lower + 1).double() / (count + 1)
