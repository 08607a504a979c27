"""Boundaries between the classes of different tasks, learned on kept feature vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

STRENGTH = 0.03
"""What holds boundaries to where the Gaussians put them; chosen in scripts/study_routing.py."""
STEPS = 25


def sharpen(weight: Tensor, bias: Tensor, features: Tensor, targets: Tensor) -> Tensor:
    """What to add to linear logits, weights and bias side by side: (classes, dim + 1).

    Logistic regression that starts from the logits as they are,
    min over Δ, δ of the cross entropy of (weight + Δ) x + bias + δ, plus STRENGTH · ‖Δ‖²,
    where x is whitened, so that ‖Δ‖² means the same for all features.

    >>> x = torch.tensor([[1.0, 0.2], [-1.0, 0.2], [0.9, -0.2], [-0.9, -0.2]])
    >>> change = sharpen(torch.zeros(2, 2), torch.zeros(2), x, torch.tensor([0, 1, 0, 1]))
    >>> (x @ change[:, :-1].mT + change[:, -1]).argmax(1)
    tensor([0, 1, 0, 1])
    """
    change = torch.zeros(len(weight), weight.shape[1] + 1, device=weight.device)
    change.requires_grad_()
    x, weight, bias = features.float(), weight.float(), bias.float()
    base = x @ weight.mT + bias
    optimizer = torch.optim.LBFGS(
        [change], max_iter=STEPS, history_size=8, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = base + x @ change[:, :-1].mT + change[:, -1]
        value = F.cross_entropy(logits, targets) + STRENGTH * change[:, :-1].square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return change.detach()
