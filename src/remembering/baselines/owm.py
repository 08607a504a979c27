"""Orthogonal weights modification: weights move only where earlier inputs have no part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter, OneAdapter
from remembering.baselines.base import SingleAdapter, parameters
from remembering.data.task import Task
from remembering.inference.token_cache import batches
from remembering.learning.training import TrainingSet


class OWM(SingleAdapter):
    """A projector for each matrix of weights, onto what is orthogonal to its inputs so far.

    With X the inputs that a matrix W saw in a task (a column each, in units that make the mean
    square of a feature 1 / n), recursive least squares gives, from P = I at first,

        P ← P − P X (α I + Xᵀ P X)⁻¹ Xᵀ P = (P⁻¹ + X Xᵀ / α)⁻¹,   and   ΔW ← ΔW P

    in the tasks after it: W x stays what it was for x in the span of X, the more so the smaller α.

    Adapted: W are the matrices A and B of the adapter and the head, whose bias is the weight of an
    input that is always 1. The inputs of A are the tokens, those of B are A x: few, so that B has
    little freedom after the first task, and it is A that goes on learning. P is updated with all
    inputs of a task at once and not batch by batch. α stays the same where the authors let it
    decay, and is the same for all matrices, where theirs differs from layer to layer: the units
    make up for that, without which the head is fixed long before the adapter is. ΔW is the step of
    AdamW, not the gradient that it is made of: of a projected gradient, however little is left,
    AdamW would make a step of full length. α was chosen on training images that were held out
    (docs/rivals.md); inputs of a Transformer reach in all directions, and with a small α nothing
    more is learned.
    """

    name = "owm"
    title = "OWM"
    reference = (
        "Zeng et al. (2019), Continual learning of context-dependent processing in neural "
        "networks, arXiv:1810.01256"
    )
    published = "OWM"
    stores = "one adapter and one head, and a projector for the inputs of each of their matrices"
    defaults: ClassVar[Mapping[str, float]] = {"alpha": 0.1}

    @torch.no_grad()
    def on_backward_end(self, adapter: Adapter, head: Head) -> None:
        if self.learned:
            now = parameters(adapter, head)
            self.before = {name: value.clone() for name, value in now.items()}

    @torch.no_grad()
    def on_step_end(self, adapter: Adapter, head: Head) -> None:
        if self.learned:
            now = parameters(adapter, head)
            steps = {name: value - self.before[name] for name, value in now.items()}
            for name, value in self.projected(steps).items():
                now[name].copy_(self.before[name] + value)

    def projected(self, change: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Changes of the parameters, each times the projector of its inputs."""
        p = {name: self.tensors[f"projector.{name}"] for name in ("a", "b", "head")}
        rows = torch.cat([change["weight"], change["bias"][:, None]], dim=1) @ p["head"]
        # Q, K and V read the same tokens.
        a = change["a"] @ p["a"][:, [0, 0, 0, 1]]
        return {"a": a, "b": change["b"] @ p["b"], "weight": rows[:, :-1], "bias": rows[:, -1]}

    @torch.no_grad()
    def end(self, task: Task, training_set: TrainingSet) -> None:
        adapter = self.adapter
        layers, _, rank, dim = adapter.a.shape
        seen = {
            "a": adapter.a.new_zeros(layers, 2, dim, dim).double(),
            "b": adapter.a.new_zeros(layers, 4, rank, rank).double(),
            "head": adapter.a.new_zeros(dim + 1, dim + 1).double(),
        }
        listening = Listening(adapter.active(), seen["a"], seen["b"], len(training_set))
        for index in batches(len(training_set)):
            tokens = training_set.token_cache[index]
            last = self.backbone.run(tokens, start=adapter.first_layer, adapters=listening)
            features = self.backbone.pool(last)
            features = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
            seen["head"] += gram(features, len(training_set))
        for name, inputs in seen.items():
            before = self.tensors.get(f"projector.{name}")
            scale = inputs.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
            alpha = self.options["alpha"] * scale
            self.tensors[f"projector.{name}"] = narrowed(before, inputs, alpha)


@dataclass(frozen=True)
class Listening:
    """An adapter that adds up X Xᵀ of what enters its matrices."""

    active: OneAdapter
    tokens: Tensor
    """(layers, 2, dim, dim): what enters A of Q, K and V; and of O."""
    inner: Tensor
    """(layers, 4, rank, rank): what enters B."""
    images: int

    def linear(
        self, index: int, which: slice, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        self._hear(index, x, range(which.start, which.stop))
        return self.active.linear(index, which, x, weight, bias)

    def _hear(self, index: int, x: Tensor, projections: range) -> None:
        layer, count = index - self.active.first_layer, self.images * x.shape[1]
        self.tokens[layer, projections.start // 3] += gram(x, count)
        for p in projections:
            self.inner[layer, p] += gram(x @ self.active.a[layer, p].mT, count)


def gram(x: Tensor, count: int) -> Tensor:
    """X Xᵀ, where the last axis of x is an input, and there are `count` in all."""
    flat = x.flatten(0, -2).double()
    return flat.mT @ flat / count


def narrowed(projector: Tensor | None, inputs: Tensor, alpha: Tensor) -> Tensor:
    """(P⁻¹ + X Xᵀ / α)⁻¹, without inverting P.

    >>> inputs = torch.diag(torch.tensor([1.0, 0.0])).double()
    >>> narrowed(None, inputs, torch.tensor(1e-4)).round(decimals=2)
    tensor([[0., 0.],
            [0., 1.]])
    """
    one = torch.eye(inputs.shape[-1]).to(inputs)
    before = one.expand_as(inputs) if projector is None else projector.double()
    found: Tensor = torch.linalg.solve(one + before @ inputs / alpha, before)
    # Laid out as a file gives it back, so that products with it have the same bits.
    return ((found + found.mT) / 2).float().contiguous()
