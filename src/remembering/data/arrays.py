"""Convert arrays and tensors of pixels to uint8 tensors (n, channels, height, width)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from remembering.errors import InvalidInputError

_ROUNDING = 1e-2  # half precision, in which images may have been normalised


def array_to_tensor(array: np.ndarray[Any, Any] | Tensor, where: str) -> Tensor:
    """Convert an array of any byte order and memory layout to a tensor of a type torch supports.

    Args:
        array: Pixels of any real type.
        where: Description of the pixels for error messages.

    Raises:
        InvalidInputError: If the values are not real numbers.
    """
    if isinstance(array, Tensor):
        wide = array.dtype in (torch.uint16, torch.uint32, torch.uint64)
        array = array.to(torch.int64) if wide else array
        if array.is_complex():
            raise InvalidInputError(f"{where} have the type {array.dtype}; pixels are real numbers")
        return array
    if array.dtype.kind == "u" and array.dtype != np.uint8:
        array = array.astype(np.int64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        return array_to_tensor(torch.from_numpy(np.ascontiguousarray(array)), where)
    except TypeError as error:
        raise InvalidInputError(
            f"{where} have the type {array.dtype}, which is not numeric"
        ) from error


def stack_to_uint8(images: Tensor, where: str, count: int | None = None) -> Tensor:
    """Convert a stack of images to uint8 (n, channels, height, width); see `as_images`.

    Args:
        images: Images with 3 or 4 axes, or one image with its channels last or without channels.
        where: Description of the images for error messages.
        count: Number of images, if it is known.

    Raises:
        InvalidInputError: If the shape is ambiguous or not acceptable, or a value out of range.
    """
    shape = tuple(images.shape)
    if images.ndim == 3 and shape[-1] in (1, 3, 4) and shape[1] > 4:
        if count not in (None, 1):
            raise InvalidInputError(
                f"{where} of shape {shape} look like one image with its channels last; "
                f"pass a stack of {count} images"
            )
        images = images[None]
    if images.ndim == 2:
        images = images[None]
    if images.ndim == 3 and shape[0] in (3, 4) and count != shape[0]:
        raise InvalidInputError(
            f"{where} of shape {shape} are either one image of {shape[0]} channels or {shape[0]} "
            "grey images; pass images[None] for one image, or images[:, None] for grey images"
        )
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4:
        raise InvalidInputError(
            f"{where} of shape {shape} are no stack; pass (n, height, width), "
            "(n, channels, height, width) or (n, height, width, channels)"
        )
    if images.shape[1] not in (1, 3, 4) and images.shape[3] in (1, 3, 4):
        images = images.permute(0, 3, 1, 2)
    if images.shape[1] not in (1, 3, 4):
        raise InvalidInputError(f"{where} of shape {shape} have no axis of 1, 3 or 4 channels")
    if min(images.shape[2:]) == 0:
        raise InvalidInputError(f"{where} of shape {shape} have no pixels")
    return _to_uint8(images[:, :3], where).contiguous()


def denormalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return normalised images as floats in 0..1, which all functions accept.

    Args:
        images: Images (..., channels, height, width) of which `mean` was subtracted and that were
            divided by `std`, as by torchvision's `Normalize`.
        mean: Mean of each channel.
        std: Standard deviation of each channel.

    Raises:
        InvalidInputError: If the result is outside 0..1: mean and std are not those that were used.

    >>> denormalise(torch.full((1, 3, 2, 2), -1.0), [0.5] * 3, [0.5] * 3).unique()
    tensor([0.])
    """
    shift, scale = (torch.tensor(list(v), device=images.device).view(-1, 1, 1) for v in (mean, std))
    if images.ndim < 3 or not len(shift) == len(scale) == images.shape[-3]:
        raise InvalidInputError(
            f"images of shape {tuple(images.shape)} do not have {len(shift)} channels of which "
            "mean and std are given"
        )
    pixels = images * scale + shift
    if pixels.numel() and not (pixels.min() >= -_ROUNDING and pixels.max() <= 1 + _ROUNDING):
        raise InvalidInputError(
            f"with this mean and std, pixels are from {pixels.min():.3g} to {pixels.max():.3g} "
            "instead of 0..1; pass those that the images were normalised with"
        )
    return pixels.clamp(0, 1)


def _to_uint8(images: Tensor, where: str) -> Tensor:
    if images.dtype == torch.uint8:
        return images
    if images.dtype == torch.bool:
        return images.to(torch.uint8) * 255
    if not images.is_floating_point():
        if images.numel() and (images.min() < 0 or images.max() > 255):
            raise InvalidInputError(f"{where} have integer pixels outside 0..255")
        return images.to(torch.uint8)
    if not torch.isfinite(images).all():
        bad = (~torch.isfinite(images)).flatten(1).any(1).nonzero()[0].item()
        raise InvalidInputError(
            f"{where} have pixels that are NaN or infinite, first in image {bad}"
        )
    if images.numel() and (images.min() < -1e-6 or images.max() > 1 + 1e-6):
        raise InvalidInputError(
            f"{where} have pixels from {images.min():.3g} to {images.max():.3g}; floats must lie "
            "in 0..1 (divide by 255, or pass uint8; if they are normalised, call denormalise)"
        )
    return (images * 255).round().clamp(0, 255).to(torch.uint8)
