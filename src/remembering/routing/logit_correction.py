"""Logit correction: refine the boundaries between classes of different tasks on kept features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

STRENGTH = 0.03
"""Weight of the penalty; chosen on training images, see docs/routing.md."""
STEPS = 25


def fit_logit_correction(logits: Tensor, features: Tensor, targets: Tensor) -> Tensor:
    """Fit weights and biases (classes, dim + 1) that are added to logits (n, classes).

    Logistic regression with the given logits as offset: minimise over Δ, δ the mean cross-entropy
    of logits + Δ x + δ plus STRENGTH · ‖Δ‖². The features x (n, dim) are whitened, so that the
    penalty treats them alike.

    >>> x = torch.tensor([[1.0, 0.2], [-1.0, 0.2], [0.9, -0.2], [-0.9, -0.2]])
    >>> correction = fit_logit_correction(torch.zeros(4, 2), x, torch.tensor([0, 1, 0, 1]))
    >>> (x @ correction[:, :-1].mT.float() + correction[:, -1]).argmax(1)
    tensor([0, 1, 0, 1])
    """
    offset, x = logits.float(), features.float()
    correction = x.new_zeros(logits.shape[1], x.shape[1] + 1).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [correction], max_iter=STEPS, history_size=8, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        outputs = offset + x @ correction[:, :-1].mT + correction[:, -1]
        penalty = STRENGTH * correction[:, :-1].square().sum()
        value = F.cross_entropy(outputs, targets) + penalty
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return correction.detach().to(logits.dtype)
