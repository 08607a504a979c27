"""Adapters in an exported graph: one is merged into the weights, several are gathered per image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remembering.adapters.lora import ActiveAdapters, Adapter
from remembering.backbones.backbone import Backbone


class MergedAdapter(nn.Module):
    """The only adapter of a model: W + B A instead of W, computed once."""

    def __init__(self, backbone: Backbone, adapter: Adapter):
        super().__init__()
        self.first_layer = adapter.first_layer
        for i, (a, b) in enumerate(zip(adapter.a, adapter.b, strict=True), self.first_layer):
            layer: Any = backbone.layers[i]
            change = b @ a  # (4, dim, dim)
            self.register_buffer(f"qkv{i}", layer.qkv_weight + change[:3].flatten(0, 1))
            self.register_buffer(f"output{i}", layer.output.weight + change[3])

    def active(self, adapters: Tensor) -> ActiveAdapters:
        """Activate the adapter for all images."""
        return self

    def linear(
        self, index: int, which: slice, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        if index < self.first_layer:
            return F.linear(x, weight, bias)
        if which.start == 3:
            return F.linear(x, self.get_buffer(f"output{index}"), bias)
        dim = x.shape[2]
        rows = slice(which.start * dim, which.stop * dim)
        return F.linear(x, self.get_buffer(f"qkv{index}")[rows], bias)


class GatheredAdapters(nn.Module):
    """All adapters of a model in tables, from which each image of a batch takes its own."""

    def __init__(self, adapters: Sequence[Adapter]):
        super().__init__()
        self.first_layer = adapters[0].first_layer
        a = torch.stack([adapter.a for adapter in adapters])
        b = torch.stack([adapter.b for adapter in adapters])
        for layer in range(a.shape[1]):
            for name, which in (("qkv", slice(0, 3)), ("output", slice(3, 4))):
                index = self.first_layer + layer
                self.register_buffer(f"{name}{index}_a", a[:, layer, which].contiguous())
                self.register_buffer(f"{name}{index}_b", b[:, layer, which].contiguous())

    def active(self, adapters: Tensor) -> ActiveAdapters:
        """Activate the adapter at position `adapters[i]` for image i."""
        return _Gathered(self, adapters)


class _Gathered:
    def __init__(self, tables: GatheredAdapters, adapters: Tensor):
        self.tables, self.adapters = tables, adapters

    def linear(
        self, index: int, which: slice, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        out = F.linear(x, weight, bias)
        if index < self.tables.first_layer:
            return out
        name = f"output{index}" if which.start == 3 else f"qkv{index}"
        rows = slice(0, 1) if which.start == 3 else which
        a = self.tables.get_buffer(f"{name}_a")[:, rows].index_select(0, self.adapters)
        b = self.tables.get_buffer(f"{name}_b")[:, rows].index_select(0, self.adapters)
        # x is (n, tokens, dim), a (n, projections, rank, dim), b (n, projections, dim, rank).
        low = (x @ a.flatten(1, 2).mT).unflatten(2, a.shape[1:3]).transpose(1, 2)
        adapted: Tensor = out + (low @ b.mT).transpose(1, 2).flatten(2)
        return adapted
