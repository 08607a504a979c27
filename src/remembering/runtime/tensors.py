"""Tensors in the safetensors format, from bytes that are not trusted."""

from __future__ import annotations

import json

from safetensors.torch import load
from torch import Tensor


def decode_tensors(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file in torch's own memory, and its metadata.

    How a product is rounded depends on the alignment of its factors, so tensors are copied instead
    of referring to `data`: a stored model then computes the same bits as before.

    Raises:
        ValueError: If the bytes are not in the safetensors format.
    """
    try:
        tensors: dict[str, Tensor] = load(data)
        length = int.from_bytes(data[:8], "little")
        metadata: dict[str, str] = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
        return {name: tensor.clone() for name, tensor in tensors.items()}, metadata
    except Exception as error:  # safetensors, json and torch each raise their own
        raise ValueError(f"not in the safetensors format ({error})") from error
