"""One Transformer layer, and the protocol through which adapters change its projections."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remembering.backbones.families import Family


class ActiveAdapters(Protocol):
    """The adapters of a forward pass."""

    def linear(
        self, index: int, which: slice, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Compute x Wᵀ + bias with adapted weights.

        Args:
            index: Number of the layer.
            which: Projections, as a slice of Q, K, V, O.
            x: Input (n, tokens, dim).
            weight: Rows of these projections, one after the other.
            bias: Their biases in the same order, or None.

        Returns:
            The outputs of these projections, one after the other.
        """


class Layer(nn.Module):
    """One pre-norm Transformer layer; Q, K and V are computed in one product.

    u = x + s₁ · O(attention(QKV(norm₁(x)))),  y = u + s₂ · MLP(norm₂(u)),
    with the layer scales s₁, s₂ of DINO and 1 elsewhere.

    Args:
        layer: The layer of a transformers model, whose modules are reused.
        family: Its family.
        num_heads: The number of attention heads.
    """

    def __init__(self, layer: Any, family: Family, num_heads: int):
        super().__init__()
        attention = getattr(layer, family.attention)
        qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.num_heads = num_heads
        self.norm1, self.norm2 = (getattr(layer, name) for name in family.norms)
        self.qkv_weight = nn.Parameter(torch.cat([p.weight for p in qkv]))
        biases = [p.bias for p in qkv]
        # DINOv3 has none for K.
        zeros = torch.zeros_like(attention.q_proj.weight[:, 0])
        self.qkv_bias = (
            nn.Parameter(torch.cat([zeros if bias is None else bias for bias in biases]))
            if any(bias is not None for bias in biases)
            else None
        )
        self.output = getattr(attention, family.output)
        self.mlp = layer.mlp
        self.scale1 = layer.layer_scale1 if family.layer_scale else nn.Identity()
        self.scale2 = layer.layer_scale2 if family.layer_scale else nn.Identity()

    def forward(
        self,
        x: Tensor,
        index: int,
        adapters: ActiveAdapters | None,
        cls_only: bool = False,
        rope: Tensor | None = None,
    ) -> Tensor:
        """Map state `index` to the next one.

        Args:
            x: Tokens (n, tokens, dim).
            index: Number of this layer.
            adapters: Adapters of its projections. If None, nothing is adapted.
            cls_only: Compute only the CLS token of the next state, (n, 1, dim).
            rope: Cosines and sines of the rotary position embeddings, (2, patches, head dim).
        """
        n, tokens, dim = x.shape
        linear = partial(adapters.linear, index) if adapters else _linear
        weight, bias = self.qkv_weight, self.qkv_bias
        normed = self.norm1(x)
        if cls_only:
            x = x[:, :1]
            q_bias, kv_bias = (None, None) if bias is None else (bias[:dim], bias[dim:])
            q = linear(slice(0, 1), normed[:, :1], weight[:dim], q_bias)
            kv = linear(slice(1, 3), normed, weight[dim:], kv_bias)
            q = q.view(n, 1, self.num_heads, -1)
            k, v = kv.view(n, tokens, 2, self.num_heads, -1).unbind(2)
        else:
            qkv = linear(slice(0, 3), normed, weight, bias)
            q, k, v = qkv.view(n, tokens, 3, self.num_heads, -1).unbind(2)
        # Transposing last saves a copy of the gradients of q, k and v.
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if rope is not None:
            q, k = q if cls_only else _rotate(q, rope), _rotate(k, rope)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        out = linear(slice(3, 4), mixed, self.output.weight, self.output.bias)
        x = x + self.scale1(out)
        result: Tensor = x + self.scale2(self.mlp(self.norm2(x)))
        return result


def _rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Apply rotary position embeddings to the patches of x (n, heads, tokens, head dim).

    The tokens before the patches, CLS and registers, have no position.
    """
    cos, sin = rope.unbind()
    others, patches = x.split((x.shape[2] - len(cos), len(cos)), dim=2)
    half, other_half = patches.chunk(2, dim=3)
    turned = patches * cos + torch.cat([-other_half, half], dim=3) * sin
    return torch.cat([others, turned], dim=2)


def _linear(which: slice, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute projections without adapters."""
    return F.linear(x, weight, bias)
