"""Orthogonal weights modification (OWM): updates orthogonal to the inputs of earlier tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter, OneAdapter
from remembering.baselines.single_adapter import SingleAdapter, parameters
from remembering.data.task import Task
from remembering.inference.token_cache import batches
from remembering.learning.training import TrainingSet


class OWM(SingleAdapter):
    """Project the updates of each weight matrix onto the complement of its earlier inputs.

    With X the inputs of a matrix W in a task (one per column, in units that make the mean square of
    a feature 1 / n), recursive least squares gives, starting from P = I,

        P ← P − P X (α I + Xᵀ P X)⁻¹ Xᵀ P = (P⁻¹ + X Xᵀ / α)⁻¹,   and   ΔW ← ΔW P

    in later tasks: W x is preserved for x in the span of X, the better the smaller α.

    Adaptation: W are the matrices A and B of the adapter and the head, whose bias is the weight of
    a constant input 1. The inputs of A are the tokens, those of B are A x. The latter have few
    dimensions, so B has little freedom after the first task and mostly A continues to learn. P is
    updated with all inputs of a task at once and not batch by batch. α is constant, where the
    authors let it decay, and equal for all matrices, where theirs differs between layers; the units
    of X compensate for that, without which the head would be fixed long before the adapter. ΔW is
    the step of AdamW and not its gradient: AdamW would turn a projected gradient, however small,
    into a step of full length.

    Defaults: `alpha` (α) was tuned on held-out training images (docs/baselines.md). Inputs of a
    Transformer span all directions, and with a small α nothing more is learned.
    """

    name = "owm"
    title = "OWM"
    reference = (
        "Zeng et al. (2019), Continual learning of context-dependent processing in neural "
        "networks, arXiv:1810.01256"
    )
    published = "OWM"
    stores = "one adapter, one head, and a projector for the inputs of each weight matrix"
    defaults: ClassVar[Mapping[str, float]] = {"alpha": 0.1}

    @torch.no_grad()
    def on_backward_end(self, adapter: Adapter, head: Head) -> None:
        if self.learned:
            theta = parameters(adapter, head)
            self.before = {name: value.clone() for name, value in theta.items()}

    @torch.no_grad()
    def on_step_end(self, adapter: Adapter, head: Head) -> None:
        if self.learned:
            theta = parameters(adapter, head)
            steps = {name: value - self.before[name] for name, value in theta.items()}
            for name, value in self.projected(steps).items():
                theta[name].copy_(self.before[name] + value)

    def projected(self, change: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return changes of the parameters, each multiplied by the projector of its inputs."""
        p = {name: self.tensors[f"projector.{name}"] for name in ("a", "b", "head")}
        rows = torch.cat([change["weight"], change["bias"][:, None]], dim=1) @ p["head"]
        # Q, K and V have the same input.
        a = change["a"] @ p["a"][:, [0, 0, 0, 1]]
        return {"a": a, "b": change["b"] @ p["b"], "weight": rows[:, :-1], "bias": rows[:, -1]}

    @torch.no_grad()
    def end(self, task: Task, training_set: TrainingSet) -> None:
        adapter = self.adapter
        layers, _, rank, dim = adapter.a.shape
        moments = {
            "a": adapter.a.new_zeros(layers, 2, dim, dim).double(),
            "b": adapter.a.new_zeros(layers, 4, rank, rank).double(),
            "head": adapter.a.new_zeros(dim + 1, dim + 1).double(),
        }
        recorder = MomentRecorder(adapter.active(), moments["a"], moments["b"], len(training_set))
        for index in batches(len(training_set)):
            tokens = training_set.token_cache[index]
            last = self.backbone.run(tokens, start=adapter.first_layer, adapters=recorder)
            features = self.backbone.pool(last)
            features = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
            moments["head"] += second_moment(features, len(training_set))
        for name, moment in moments.items():
            before = self.tensors.get(f"projector.{name}")
            scale = moment.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
            alpha = self.options["alpha"] * scale
            self.tensors[f"projector.{name}"] = updated_projector(before, moment, alpha)


@dataclass(frozen=True)
class MomentRecorder:
    """An active adapter that accumulates X Xᵀ of the inputs of its matrices.

    Attributes:
        active: The adapter.
        tokens: Sums for the inputs of A of Q, K and V, and of O: (layers, 2, dim, dim).
        inner: Sums for the inputs of B: (layers, 4, rank, rank).
        images: Number of images in total, over which moments are averaged.
    """

    active: OneAdapter
    tokens: Tensor
    inner: Tensor
    images: int

    def linear(
        self, index: int, which: slice, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        layer, count = index - self.active.first_layer, self.images * x.shape[1]
        self.tokens[layer, which.start // 3] += second_moment(x, count)
        for p in range(which.start, which.stop):
            self.inner[layer, p] += second_moment(x @ self.active.a[layer, p].mT, count)
        return self.active.linear(index, which, x, weight, bias)


def second_moment(x: Tensor, count: int) -> Tensor:
    """Return X Xᵀ / count, where the last axis of x is an input vector."""
    flat = x.flatten(0, -2).double()
    return flat.mT @ flat / count


def updated_projector(projector: Tensor | None, moment: Tensor, alpha: Tensor) -> Tensor:
    """Return (P⁻¹ + X Xᵀ / α)⁻¹ without inverting P.

    >>> moment = torch.diag(torch.tensor([1.0, 0.0])).double()
    >>> updated_projector(None, moment, torch.tensor(1e-4)).round(decimals=2)
    tensor([[0., 0.],
            [0., 1.]])
    """
    one = torch.eye(moment.shape[-1]).to(moment)
    before = one.expand_as(moment) if projector is None else projector.double()
    updated: Tensor = torch.linalg.solve(one + before @ moment / alpha, before)
    # The memory layout of a loaded tensor, so that products have the same bits after loading.
    return ((updated + updated.mT) / 2).float().contiguous()
