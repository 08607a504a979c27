"""LoRA adapters, and a forward pass for batches whose samples use different adapters.

An adapter adds B A x to the Q, K, V and O projections of a layer. A (rank, dim) starts random and
B (dim, rank) zero, so that a new adapter does not change the output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.backbones.layer import ActiveAdapters as ActiveAdapters
from remembering.errors import RememberingError

PROJECTIONS = 4  # Q, K, V, O


@dataclass(frozen=True)
class Adapter:
    """One LoRA adapter: ΔW = B A for Q, K, V and O of every layer from `first_layer` on.

    Attributes:
        a: (layers, 4, rank, dim).
        b: (layers, 4, dim, rank).
    """

    a: Tensor
    b: Tensor
    first_layer: int = 0

    @classmethod
    def new(cls, backbone: Backbone, rank: int, first_layer: int, rng: torch.Generator) -> Adapter:
        """Initialise an adapter as PEFT does: A Kaiming uniform with a = √5, B zero."""
        if rank < 1:
            raise RememberingError(f"adapter rank {rank} is not at least 1")
        if not 0 <= first_layer < backbone.depth:
            raise RememberingError(
                f"first adapted layer {first_layer} is not in 0..{backbone.depth - 1}"
            )
        shape = (backbone.depth - first_layer, PROJECTIONS, rank, backbone.dim)
        bound = 1 / math.sqrt(backbone.dim)
        a = torch.empty(shape).uniform_(-bound, bound, generator=rng)
        b = torch.zeros(*shape[:2], backbone.dim, rank)
        return cls(a.to(backbone.device), b.to(backbone.device), first_layer)

    @property
    def rank(self) -> int:
        """Rank of each ΔW."""
        return self.a.shape[2]

    @property
    def parameters(self) -> int:
        """Number of parameters, 4 · L · 2D · r: the paper's memory footprint."""
        return self.a.numel() + self.b.numel()

    @property
    def shape(self) -> tuple[int, ...]:
        """(layers, 4, rank, dim, first layer): adapters of one shape can share a batch."""
        return (*self.a.shape, self.first_layer)

    @property
    def nbytes(self) -> int:
        """Memory of A and B."""
        return self.a.nbytes + self.b.nbytes

    def to(self, device: torch.device) -> Adapter:
        """Return this adapter on another device."""
        return Adapter(self.a.to(device), self.b.to(device), self.first_layer)

    def active(self) -> OneAdapter:
        """Activate this adapter for all samples of a batch; gradients reach A and B."""
        return OneAdapter(self.a, self.b, self.first_layer)

    def trainable(self) -> Adapter:
        """Return a copy whose A and B require gradients."""
        a, b = (t.detach().clone().requires_grad_() for t in (self.a, self.b))
        return Adapter(a, b, self.first_layer)

    def frozen(self) -> Adapter:
        """Return a copy that does not require gradients."""
        return Adapter(self.a.detach().clone(), self.b.detach().clone(), self.first_layer)


@dataclass(frozen=True)
class OneAdapter:
    """All samples of the batch use the same adapter.

    Without gradients, merged weights are kept for the next batch: of a small batch, merging them is
    a large part of the time.
    """

    a: Tensor
    b: Tensor
    first_layer: int
    _kept: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def linear(
        self, index: int, which: slice, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        layer = index - self.first_layer
        if layer < 0:
            return F.linear(x, weight, bias)
        if torch.is_grad_enabled() or self.a.requires_grad:
            a, b = self.a[layer, which], self.b[layer, which]
            out: Tensor = _Merged.apply(x, weight, bias, a, b)
            return out
        key = (layer, which.start, which.stop)
        kept = self._kept.get(key)
        if kept is None or kept[0].data_ptr() != weight.data_ptr():  # or of another backbone
            merged = _merge(weight, self.a[layer, which], self.b[layer, which])
            self._kept[key] = kept = weight, merged
        return F.linear(x, kept[1], bias)


def _merge(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return W + B A for one or more projections."""
    return torch.baddbmm(weight.view(*b.shape[:2], -1), b, a).flatten(0, 1)


class _Merged(torch.autograd.Function):
    """x (W + B A)ᵀ + bias, with gradients for x, A and B.

    A batch has hundreds of tokens, so adding B A to W once is cheaper than a low-rank path for
    every token, and the backward pass to x is a single product, too.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor
    ) -> Tensor:
        merged = _merge(weight, a, b)
        ctx.save_for_backward(x, merged, a, b)
        return F.linear(x, merged, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return g (W + B A) for x, (g B)ᵀ x for A and gᵀ (x Aᵀ) for B, from the gradient g."""
        (g,) = gradients
        x, merged, a, b = ctx.saved_tensors
        for_x = (g @ merged.to(g.dtype)).to(x.dtype) if ctx.needs_input_grad[0] else None
        if not (ctx.needs_input_grad[3] or ctx.needs_input_grad[4]):
            return for_x, None, None, None, None
        count, rank, dim = a.shape
        # Under mixed precision the gradient has another type than the adapter.
        x, g = x.reshape(-1, dim).to(g.dtype), g.reshape(-1, len(merged))
        down = x @ a.flatten(0, 1).mT.to(g.dtype)
        # All projections at once, with their B as blocks of a diagonal matrix. Row-major thin
        # factors without transposed operands are several times faster on a CPU.
        for_a = (g @ torch.block_diag(*b.mT).mT.to(g.dtype)).mT @ x
        for_b = (down.mT @ g).view(count, rank, count, -1)
        own = for_b.diagonal(dim1=0, dim2=2).permute(2, 1, 0)
        return for_x, None, None, for_a.view(a.shape).to(a.dtype), own.to(b.dtype)


@dataclass(frozen=True)
class MixedAdapters:
    """Each sample uses its own A (n, layers, 4, rank, dim) and B (n, layers, 4, dim, rank)."""

    a: Tensor
    b: Tensor
    first_layer: int

    def linear(
        self, index: int, which: slice, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        out = F.linear(x, weight, bias)
        layer = index - self.first_layer
        if layer < 0:
            return out
        a, b = self.a[:, layer, which], self.b[:, layer, which]
        n, count, rank, dim = a.shape
        down = x @ a.reshape(n, count * rank, dim).mT
        if count == 1:
            up = b[:, 0].mT
        else:
            up = x.new_zeros(n, count, rank, count, dim)
            up.diagonal(dim1=1, dim2=3).copy_(b.permute(0, 3, 2, 1))
            up = up.view(n, count * rank, count * dim)
        return out.baddbmm_(down, up)
