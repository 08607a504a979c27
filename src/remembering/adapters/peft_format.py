"""PEFT's file format for LoRA adapters: write and read `adapter_config.json` and weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import index
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from remembering.adapters.lora import PROJECTIONS, Adapter
from remembering.backbones.backbone import Backbone
from remembering.errors import RememberingError

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_UNSUPPORTED = (
    "use_dora",
    "use_rslora",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
)


def to_peft(adapter: Adapter, backbone: Backbone) -> dict[str, bytes]:
    """Return the files that `peft.PeftModel.from_pretrained` reads for the same backbone."""
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


def unpack_peft(files: Mapping[str, bytes], folder: Path, backbone: Backbone) -> Adapter:
    """Parse the contents of PEFT's two files, written by any tool; `folder` is named in errors."""
    try:
        config: dict[str, Any] = json.loads(files[CONFIG_FILE])
        weights = load(files[WEIGHTS_FILE])
    except Exception as error:  # safetensors and json each raise their own
        raise RememberingError(f"the adapter in {folder} is damaged ({error})") from error
    try:
        layers = config.get("layers_to_transform")
        layers = list(range(backbone.depth)) if layers is None else sorted(map(index, layers))
        first, rank = layers[0], index(config["r"])
        scale = config.get("lora_alpha", rank) / rank
        unsupported = [key for key in _UNSUPPORTED if config.get(key)]
        unsupported += ["bias"] if config.get("bias", "none") != "none" else []
    except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise RememberingError(
            f"{folder / CONFIG_FILE} is not a LoRA configuration ({error})"
        ) from error
    if unsupported:
        raise RememberingError(
            f"the adapter in {folder} uses {', '.join(unsupported)}; only plain LoRA is supported"
        )
    if first not in range(backbone.depth) or layers != list(range(first, backbone.depth)):
        raise RememberingError(
            f"the adapter in {folder} does not fit backbone '{backbone.name}': it adapts layers "
            f"{str(layers)[:80]}, but a contiguous range up to the last layer is required"
        )
    shape = (len(layers), PROJECTIONS)
    keys = _peft_keys(backbone, first)
    others = set(weights) - {f"{key}.lora_{part}.weight" for key in keys for part in "AB"}
    if others:
        raise RememberingError(
            f"the adapter in {folder} does not fit backbone '{backbone.name}': it also adapts "
            f"{min(others)}; only Q, K, V and O are supported"
        )
    try:
        a = [_exactly(weights[f"{key}.lora_A.weight"], rank, backbone.dim) for key in keys]
        b = [_exactly(weights[f"{key}.lora_B.weight"], backbone.dim, rank) for key in keys]
    except (KeyError, ValueError) as error:
        raise RememberingError(
            f"the adapter in {folder} does not fit backbone '{backbone.name}': {error}"
        ) from error
    # Copies in torch's own memory: the rounding of a product depends on the alignment.
    stacked_a, stacked_b = torch.stack(a).float(), torch.stack(b).float() * scale
    return Adapter(
        stacked_a.unflatten(0, shape).to(backbone.device),
        stacked_b.unflatten(0, shape).to(backbone.device),
        first,
    )


def _exactly(tensor: Tensor, *shape: int) -> Tensor:
    if tensor.shape != shape:
        raise ValueError(f"a weight has shape {tuple(tensor.shape)} instead of {shape}")
    return tensor


def _peft_keys(backbone: Backbone, first_layer: int) -> dict[str, tuple[int, int]]:
    """Map PEFT's name of each adapted projection to its (layer, projection) in `a` and `b`."""
    return {
        f"base_model.model.{name}": (layer - first_layer, p)
        for layer in range(first_layer, backbone.depth)
        for p, name in enumerate(backbone.family.projections(layer))
    }
