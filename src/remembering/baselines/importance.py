"""How much each parameter matters to the past: shared by EWC, Online EWC and SI."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.baselines.base import SingleAdapter, parameters
from remembering.learning.training import TrainingSet, logits
from remembering.runtime.seeding import generator, permutation

NAMES = ("a", "b", "weight", "bias")


def drift(
    now: Mapping[str, Tensor], importance: Mapping[str, Tensor], anchor: Mapping[str, Tensor]
) -> Tensor:
    """Σ_i Ω_i (θ_i − θ*_i)²; rows of the head that came later matter to nothing yet."""
    terms = [
        (importance[name] * (now[name][: len(anchor[name])] - anchor[name]).square()).sum()
        for name in NAMES
    ]
    return torch.stack(terms).sum()


def fisher(learner: SingleAdapter, training_set: TrainingSet, images: int) -> dict[str, Tensor]:
    """Diagonal of the Fisher information of adapter and head, over some images of a task.

    F_i = E_x E_{y ~ p(y|x)} (∂ log p(y|x) / ∂θ_i)², one image and one answer drawn at a time.
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
        drawn = torch.multinomial(outputs.detach().softmax(1).cpu(), 1, generator=rng)[:, 0]
        loss = F.cross_entropy(outputs, drawn.to(outputs.device))
        found = torch.autograd.grad(loss, list(theta.values()))
        for name, gradient in zip(theta, found, strict=True):
            total[name] += gradient.square() / len(chosen)
    return total


def stored(tensors: Mapping[str, Tensor], token_cache: str) -> dict[str, Tensor]:
    """What a method keeps under `token_cache`, by parameter name."""
    return {name: tensors[f"{token_cache}.{name}"] for name in NAMES}


def to_store(values: Mapping[str, Tensor], token_cache: str) -> dict[str, Tensor]:
    """The inverse of `stored`."""
    return {f"{token_cache}.{name}": values[name].detach().clone() for name in NAMES}
