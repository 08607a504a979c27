"""Boundaries between the classes of different tasks, learned on kept feature vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

STRENGTH = 0.03
"""What holds boundaries to where they were; chosen on training images, see docs/routing.md."""
STEPS = 25


def fit_logit_correction(logits: Tensor, features: Tensor, targets: Tensor) -> Tensor:
    """What to add to logits (n, classes), as weights and bias side by side: (classes, dim + 1).

    Logistic regression that starts from the logits as they are,
    min over Δ, δ of the mean cross entropy of logits + Δ x + δ, plus STRENGTH · ‖Δ‖²,
    where the features x (n, dim) are whitened, so that ‖Δ‖² means the same for all of them.

    >>> x = torch.tensor([[1.0, 0.2], [-1.0, 0.2], [0.9, -0.2], [-0.9, -0.2]])
    >>> change = fit_logit_correction(torch.zeros(4, 2), x, torch.tensor([0, 1, 0, 1]))
    >>> (x @ change[:, :-1].mT.float() + change[:, -1]).argmax(1)
    tensor([0, 1, 0, 1])
    """
    start, x = logits.float(), features.float()
    change = x.new_zeros(logits.shape[1], x.shape[1] + 1).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [change], max_iter=STEPS, history_size=8, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        outputs = start + x @ change[:, :-1].mT + change[:, -1]
        value = F.cross_entropy(outputs, targets) + STRENGTH * change[:, :-1].square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return change.detach().to(logits.dtype)
