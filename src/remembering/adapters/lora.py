"""LoRA adapters, and one forward for a batch whose samples use different ones.

An adapter adds B A x to the Q, K, V and O projections of a layer: A is (rank, dim) and random,
B is (dim, rank) and zero, so that a new adapter changes nothing yet. Files are PEFT's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.backbones.layer import ActiveAdapters as ActiveAdapters
from remembering.errors import RememberingError

PROJECTIONS = 4  # Q, K, V, O
_NOT_PLAIN = (
    "use_dora",
    "use_rslora",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
)
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"


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
        """A random, B zero: LoRA's initialisation (Kaiming uniform with a = √5, as in PEFT)."""
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
        """4 · L · 2D · r: what the paper counts as memory footprint."""
        return self.a.numel() + self.b.numel()

    def active(self) -> OneAdapter:
        """For a forward in which every sample uses this adapter; gradients reach A and B."""
        return OneAdapter(self.a, self.b, self.first_layer)

    def trainable(self) -> Adapter:
        """A copy whose A and B take gradients."""
        a, b = (t.detach().clone().requires_grad_() for t in (self.a, self.b))
        return Adapter(a, b, self.first_layer)

    def frozen(self) -> Adapter:
        """A copy that takes no gradients."""
        return Adapter(self.a.detach().clone(), self.b.detach().clone(), self.first_layer)


@dataclass(frozen=True)
class OneAdapter:
    """Every sample of the batch uses the same adapter."""

    a: Tensor
    b: Tensor
    first_layer: int

    def linear(
        self, index: int, which: slice, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        layer = index - self.first_layer
        if layer < 0:
            return F.linear(x, weight, bias)
        merged: Tensor = _Merged.apply(x, weight, bias, self.a[layer, which], self.b[layer, which])
        return merged


class _Merged(torch.autograd.Function):
    """x (W + B A)ᵀ + bias, with gradients for x, A and B.

    A batch has hundreds of tokens, so adding B A to W once is cheaper than a second way for every
    token, and the backward pass to x is one product, too.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor
    ) -> Tensor:
        merged = torch.baddbmm(weight.view(*b.shape[:2], -1), b, a).flatten(0, 1)
        ctx.save_for_backward(x, merged, a, b)
        return F.linear(x, merged, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """With g the gradient of the output: g (W + B A) for x, (g B)ᵀ x for A, gᵀ (x Aᵀ) for B."""
        (g,) = gradients
        x, merged, a, b = ctx.saved_tensors
        for_x = (g @ merged.to(g.dtype)).to(x.dtype) if ctx.needs_input_grad[0] else None
        if not (ctx.needs_input_grad[3] or ctx.needs_input_grad[4]):
            return for_x, None, None, None, None
        count, rank, dim = a.shape
        # Under mixed precision the gradient has another type than the adapter.
        x, g = x.reshape(-1, dim).to(g.dtype), g.reshape(-1, len(merged))
        down = x @ a.flatten(0, 1).mT.to(g.dtype)
        # All projections at once: the B of each stands on the diagonal of one matrix. Thin
        # factors lie by rows and transposed ones are avoided: several times as fast on a CPU.
        for_a = (g @ torch.block_diag(*b.mT).mT.to(g.dtype)).mT @ x
        for_b = (down.mT @ g).view(count, rank, count, -1)
        own = for_b.diagonal(dim1=0, dim2=2).permute(2, 1, 0)
        return for_x, None, None, for_a.view(a.shape).to(a.dtype), own.to(b.dtype)


@dataclass(frozen=True)
class MixedAdapters:
    """Each sample uses its own: A (n, layers, 4, rank, dim), B (n, layers, 4, dim, rank)."""

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


def to_peft(adapter: Adapter, backbone: Backbone) -> dict[str, bytes]:
    """The files that `peft.PeftModel.from_pretrained` reads for the same backbone."""
    weights: dict[str, Tensor] = {}
    for key, (layer, p) in _peft_keys(backbone, adapter.first_layer).items():
        weights[f"{key}.lora_A.weight"] = adapter.a[layer, p].cpu().contiguous()
        weights[f"{key}.lora_B.weight"] = adapter.b[layer, p].cpu().contiguous()
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": backbone.name,
        "r": adapter.rank,
        "lora_alpha": adapter.rank,  # PEFT scales by alpha / r; the paper does not scale
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(
            {name.rsplit(".", 1)[1] for name in backbone.family.projections(0)}
        ),
        "layers_to_transform": list(range(adapter.first_layer, backbone.depth)),
        "layers_pattern": backbone.family.layers.rsplit(".", 1)[-1],
    }
    return {
        CONFIG_FILE: (json.dumps(config, indent=2) + "\n").encode(),
        WEIGHTS_FILE: save(weights, metadata={"format": "pt"}),
    }


def from_peft(folder: Path, backbone: Backbone) -> Adapter:
    """Read a LoRA adapter in PEFT's format, ours or anyone's with Q, K, V and O adapted."""
    try:
        files = {name: (folder / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)}
    except FileNotFoundError as error:
        raise RememberingError(
            f"{folder} is no PEFT adapter: {error.filename} is missing"
        ) from error
    except OSError as error:
        raise RememberingError(f"{folder} cannot be read ({error.strerror})") from error
    return unpack_peft(files, folder, backbone)


def unpack_peft(files: Mapping[str, bytes], folder: Path, backbone: Backbone) -> Adapter:
    """The adapter in PEFT's two files, which come from `folder`."""
    try:
        config: dict[str, Any] = json.loads(files[CONFIG_FILE])
        weights = load(files[WEIGHTS_FILE])
    except Exception as error:  # safetensors and json each raise their own
        raise RememberingError(f"the adapter in {folder} is damaged ({error})") from error
    try:
        layers = config.get("layers_to_transform")
        layers = list(range(backbone.depth)) if layers is None else sorted(layers)
        first, rank = layers[0], int(config["r"])
        scale = config.get("lora_alpha", rank) / rank
        unsupported = [key for key in _NOT_PLAIN if config.get(key)]
        unsupported += ["bias"] if config.get("bias", "none") != "none" else []
    except (
        AttributeError,
        TypeError,
        ValueError,
        KeyError,
        IndexError,
        ZeroDivisionError,
    ) as error:
        raise RememberingError(
            f"{folder / CONFIG_FILE} is no LoRA configuration ({error})"
        ) from error
    if unsupported:
        raise RememberingError(
            f"the adapter in {folder} uses {', '.join(unsupported)}; only plain LoRA is read"
        )
    if layers != list(range(first, backbone.depth)):
        raise RememberingError(
            f"the adapter in {folder} does not fit backbone '{backbone.name}': it adapts layers "
            f"{layers}, but all from one on to the last are needed"
        )
    shape = (len(layers), PROJECTIONS)
    keys = _peft_keys(backbone, first)
    others = set(weights) - {f"{key}.lora_{part}.weight" for key in keys for part in "AB"}
    if others:
        raise RememberingError(
            f"the adapter in {folder} does not fit backbone '{backbone.name}': it also adapts "
            f"{min(others)}; only Q, K, V and O can be"
        )
    try:
        a = [_exactly(weights[f"{key}.lora_A.weight"], rank, backbone.dim) for key in keys]
        b = [_exactly(weights[f"{key}.lora_B.weight"], backbone.dim, rank) for key in keys]
    except (KeyError, ValueError) as error:
        raise RememberingError(
            f"the adapter in {folder} does not fit backbone '{backbone.name}': {error}"
        ) from error
    # Copies in torch's own memory: how a product is rounded depends on where tensors lie.
    stacked_a, stacked_b = torch.stack(a).float(), torch.stack(b).float() * scale
    return Adapter(
        stacked_a.unflatten(0, shape).to(backbone.device),
        stacked_b.unflatten(0, shape).to(backbone.device),
        first,
    )


def _exactly(tensor: Tensor, *shape: int) -> Tensor:
    if tensor.shape != shape:
        raise ValueError(f"shape {tuple(tensor.shape)} where {shape} is needed")
    return tensor


def _peft_keys(backbone: Backbone, first_layer: int) -> dict[str, tuple[int, int]]:
    """PEFT's name of each adapted projection, with its (layer, projection) in `a` and `b`."""
    return {
        f"base_model.model.{name}": (index - first_layer, p)
        for index in range(first_layer, backbone.depth)
        for p, name in enumerate(backbone.family.projections(index))
    }
