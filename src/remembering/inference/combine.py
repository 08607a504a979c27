"""One answer from two opinions: what the router knows of classes, and what the adapter knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remembering.data.task import Label


@dataclass(frozen=True)
class Columns:
    """Whose the router's class columns are: column i is a class of one task."""

    label: Tensor
    """Position of its label among all labels."""
    adapter: Tensor
    """The adapter that answers for its task."""

    @classmethod
    def of(cls, tasks: Sequence[tuple[int, Sequence[Label]]], labels: Sequence[Label]) -> Columns:
        """From each task's adapter and classes."""
        position = {label: i for i, label in enumerate(labels)}
        return cls(
            torch.tensor([position[label] for _, classes in tasks for label in classes]),
            torch.tensor([adapter for adapter, classes in tasks for _ in classes]),
        )


def combine(
    adapter: Tensor, router: Tensor, columns: Columns, chosen: Tensor, hard_routing: bool
) -> Tensor:
    """Probabilities (n, labels) of images whose adapter is chosen.

    Within the classes of the chosen adapter both opinions count, as a product:
    P(c | adapter) ∝ P_router(c) · P_adapter(c). The rest keeps what the router gives it, unless
    the choice is certain (images of one source were routed together).

    Args:
        adapter: (n, labels), 0 for labels that the chosen adapter does not know.
        router: (n, columns), log-likelihoods of all classes of all tasks.
        columns: what the router's columns stand for.
        chosen: (n,), the adapter of each image.
        hard_routing: whether the other adapters' classes are out of the question.
    """
    belief = router.softmax(1)
    own = columns.adapter.to(chosen.device) == chosen[:, None]
    inside = adapter.new_zeros(adapter.shape, dtype=belief.dtype)
    label = columns.label.to(belief.device)
    outside = inside.index_add(1, label, belief.masked_fill(own, 0))
    inside = inside.index_add(1, label, router.masked_fill(~own, float("-inf")).softmax(1))
    both = inside * adapter
    both = both / both.sum(1, keepdim=True).clamp_min(1e-300)
    if hard_routing:
        return both.to(adapter.dtype)
    share = belief.masked_fill(~own, 0).sum(1, keepdim=True)
    return (share * both + outside).to(adapter.dtype)
