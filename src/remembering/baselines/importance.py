"""Importance of parameters for earlier tasks, shared by EWC, Online EWC, SI and BI-R + SI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.single_adapter import SingleAdapter, parameters
from remembering.learning.training import TrainingSet, logits
from remembering.runtime.seeding import generator, permutation

NAMES = ("a", "b", "weight", "bias")


def quadratic_penalty(
    theta: Mapping[str, Tensor], importance: Mapping[str, Tensor], anchor: Mapping[str, Tensor]
) -> Tensor:
    """Return Σ_i Ω_i (θ_i − θ*_i)² over the parameters of `anchor`.

    Rows of `theta` beyond those of `anchor` belong to classes added later and are not penalized.
    """
    terms = [
        (importance[name] * (theta[name][: len(value)] - value).square()).sum()
        for name, value in anchor.items()
    ]
    return torch.stack(terms).sum()


def fisher(learner: SingleAdapter, training_set: TrainingSet, images: int) -> dict[str, Tensor]:
    """Estimate the diagonal Fisher information of adapter and head on a sample of a task.

    F_i = E_x E_{y ~ p(y|x)} (∂ log p(y|x) / ∂θ_i)², with one backward pass per image and one label
    drawn per image.

    Args:
        learner: The method whose current adapter and head are evaluated.
        training_set: The images of the task.
        images: Maximum number of images to use, chosen at random.
    """
    adapter, seed = learner.adapter.trainable(), learner.settings.seed
    head = learner.head
    head = head.with_tensors(
        head.weight.clone().requires_grad_(), head.bias.clone().requires_grad_()
    )
    theta = parameters(adapter, head)
    total = {name: torch.zeros_like(value) for name, value in theta.items()}
    rng = generator(seed, "fisher", training_set.number)
    chosen = permutation(len(training_set), seed, "fisher", training_set.number)[:images]
    for index in chosen.split(1):
        outputs = logits(learner.backbone, adapter, head, training_set.token_cache[index])
        label = torch.multinomial(outputs.detach().softmax(1).cpu(), 1, generator=rng)[:, 0]
        loss = F.cross_entropy(outputs, label.to(outputs.device))
        gradients = torch.autograd.grad(loss, list(theta.values()))
        for name, gradient in zip(theta, gradients, strict=True):
            total[name] += gradient.square() / len(chosen)
    return total


class PathImportance:
    """Synaptic intelligence: importance accumulated along the optimization path of one task.

    ω_i ← ω_i − g_i Δθ_i in each step, with g the gradient of the loss without the penalty. The
    gradient of the penalty c Σ_i Ω_i (θ_i − θ*_i)² has a closed form and is subtracted from the
    total gradient, which avoids a second backward pass.

    Args:
        start: θ*, the parameters at the start of the task.
        old: Ω after the previous task, possibly with fewer rows; empty before the first task.
        strength: c.
    """

    def __init__(self, start: Mapping[str, Tensor], old: Mapping[str, Tensor], strength: float):
        self.start, self.strength = start, strength
        self.path = {name: torch.zeros_like(value) for name, value in start.items()}
        self.importance = {name: torch.zeros_like(value) for name, value in start.items()}
        for name, value in old.items():
            self.importance[name][: len(value)] = value

    def penalty(self, theta: Mapping[str, Tensor]) -> Tensor:
        """Return c Σ_i Ω_i (θ_i − θ*_i)²."""
        return self.strength * quadratic_penalty(theta, self.importance, self.start)

    @torch.no_grad()
    def update(self, theta: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
        """Accumulate ω after a step from `before` to `theta`, which still has its gradients."""
        for name, start in self.start.items():
            gradient = theta[name].grad
            assert gradient is not None
            pull = 2 * self.strength * self.importance[name] * (before[name] - start)
            self.path[name] -= (gradient - pull) * (theta[name] - before[name])

    def importance_after(self, theta: Mapping[str, Tensor], damping: float) -> dict[str, Tensor]:
        """Return Ω_i + max(0, ω_i) / ((θ_i − θ*_i)² + ξ) for the final parameters of the task."""
        return {
            name: self.importance[name]
            + self.path[name].relu() / ((theta[name] - start).square() + damping)
            for name, start in self.start.items()
        }


def stored(
    tensors: Mapping[str, Tensor], prefix: str, names: Sequence[str] = NAMES
) -> dict[str, Tensor]:
    """Return the tensors stored as `<prefix>.<name>`, by parameter name."""
    return {name: tensors[f"{prefix}.{name}"] for name in names}


def to_store(values: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return copies of values by parameter name as tensors named `<prefix>.<name>`."""
    return {f"{prefix}.{name}": value.detach().clone() for name, value in values.items()}
