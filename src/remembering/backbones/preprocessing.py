"""Preprocessing of a checkpoint: size, crop, channels and normalisation of its input.

Equivalent to the image processors of transformers, but for whole batches on the device. Resizing
follows the checkpoint's `preprocessor_config.json` and rounds to 8 bits as the image processors
do, so that a resized image can be stored as uint8 without changing any prediction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.errors import InvalidFileError, reason
from remembering.runtime.reading import read_json

# Pillow's resampling codes. Torch has no Lanczos, box or Hamming filter; the closest are used.
_MODES = {
    0: "nearest-exact",
    1: "bicubic",
    2: "bilinear",
    3: "bicubic",
    4: "bilinear",
    5: "bilinear",
}
MAX_ASPECT = 8
"""Images with a larger aspect ratio are cropped to it before resizing. The ends would be cropped
afterwards anyway, but enlarging them first could exhaust memory."""
MAX_MARGIN = 4
"""Largest ratio of the resized image to the crop that is accepted from a checkpoint."""
LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as in Pillow's mode "L"
_LARGE = 2**24  # values that are converted to float at once


@dataclass(frozen=True)
class Preprocessing:
    """Converts images of any size and channel count to the input of a checkpoint.

    Attributes:
        size: Side of the input in pixels.
        channels: Number of channels of the input.
        mean: Mean of each channel, for pixels in 0..1.
        std: Standard deviation of each channel.
        mode: Interpolation mode of torch.
        edge: Size to resize to, before `size` is cropped from the centre. If None, `size`.
        keeps_ratio: Whether the shorter side becomes `edge`, instead of both sides.
    """

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mode: str = "bilinear"
    edge: int | None = None
    keeps_ratio: bool = False

    def __post_init__(self) -> None:
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise ValueError(f"mean or standard deviation not for {self.channels} channels")
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise ValueError(f"mean {self.mean} or standard deviation {self.std} out of range")
        if self.size < 1 or not 1 <= (self.edge or self.size) <= MAX_MARGIN * self.size:
            raise ValueError(f"images resized to {self.edge} pixels and cropped to {self.size}")

    @classmethod
    def from_config(cls, config: Path | None, size: int, channels: int) -> Preprocessing:
        """Read `preprocessor_config.json`.

        Args:
            config: The file. If None, the defaults of ViT are used (bilinear, 0.5, 0.5).
            size: Side of the network's input in pixels, if the file has no size.
            channels: Number of channels of the network's input.

        Raises:
            InvalidFileError: If the file is damaged or not usable.
        """
        try:
            return cls._from_spec(read_json(config) if config else {}, size, channels)
        except InvalidFileError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise InvalidFileError(
                f"{config} is not a usable preprocessor configuration ({reason(error)})"
            ) from error

    @classmethod
    def _from_spec(cls, spec: dict[str, Any], size: int, channels: int) -> Preprocessing:
        # Some processors write null for settings that have their default.
        spec = {key: value for key, value in spec.items() if value is not None}
        resize = spec.get("size", size)
        if isinstance(resize, int):  # the shorter side for CLIP's processor, both for all others
            kind = str(spec.get("image_processor_type", spec.get("feature_extractor_type", "")))
            resize = {"shortest_edge" if kind.startswith("CLIP") else "height": resize}
        crop = spec.get("crop_size", resize) if spec.get("do_center_crop") else None
        if isinstance(crop, int):
            crop = {"height": crop}
        shorter = resize.get("shortest_edge")
        normalises = spec.get("do_normalize", True)
        return cls(
            size=(crop or resize).get("height", shorter or size),
            channels=channels,
            mean=_per_channel(spec.get("image_mean", 0.5) if normalises else 0.0, channels),
            std=_per_channel(spec.get("image_std", 0.5) if normalises else 1.0, channels),
            mode=_MODES[spec.get("resample", 2)],
            edge=shorter or (resize["height"] if crop and "height" in resize else None),
            keeps_ratio=shorter is not None,
        )

    def resized(self, size: int) -> Preprocessing:
        """Return the same preprocessing for another input size, with a proportional margin."""
        edge = self.edge and round(self.edge * size / self.size)
        return replace(self, size=size, edge=edge)

    def prepare(self, images: Tensor) -> Tensor:
        """Resize, crop and match channels: (n, channels, size, size) of the same type."""
        return self._square(images, self.size)

    def shrink(self, images: Tensor) -> Tensor:
        """Resize and match channels like `prepare`, but keep the margin that it crops.

        For images that are stored or rotated. Preparing the result equals preparing the images,
        except for a shift by one pixel if margins are odd; preparing twice would enlarge them.
        """
        return self._square(images, max(self.size, self.edge or 0))

    def _square(self, images: Tensor, side: int) -> Tensor:
        """Resize for `size`, and crop this side from the centre."""
        images = _match_channels(images, self.channels)
        if self.keeps_ratio:
            images = _limit_aspect(images, MAX_ASPECT)
        height, width = images.shape[-2:]
        target = (max(self.size, self.edge or 0),) * 2
        if self.edge and self.keeps_ratio:
            scale = self.edge / min(height, width)
            target = (max(self.size, round(height * scale)), max(self.size, round(width * scale)))
        if (height, width) != target:
            images = _resize(images, target, self.mode)
        top, left = (target[0] - side) // 2, (target[1] - side) // 2
        return images[..., top : top + side, left : left + side]

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise prepared images (uint8 in 0..255, or float in 0..1)."""
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1)
        scale = 255.0 if images.dtype == torch.uint8 else 1.0
        return (images.float() - mean * scale) / (std * scale)


def _limit_aspect(images: Tensor, ratio: int) -> Tensor:
    """Crop the longer side from the centre to at most `ratio` times the shorter one."""
    height, width = images.shape[-2:]
    longest = ratio * min(height, width)
    top, left = max(0, height - longest) // 2, max(0, width - longest) // 2
    return images[..., top : top + longest, left : left + longest]


def _per_channel(value: float | list[float], channels: int) -> tuple[float, ...]:
    values = [float(v) for v in (value if isinstance(value, list) else [value])]
    return tuple(values * channels if len(values) == 1 else values)


def _match_channels(images: Tensor, channels: int) -> Tensor:
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1)
    if images.shape[2] > 1 and images.numel() > _LARGE:
        halves = images.chunk(2, dim=2)
        return torch.cat([_match_channels(half, channels) for half in halves], dim=2)
    weights = torch.tensor(LUMA, device=images.device).view(-1, 1, 1)
    return _like((images.float() * weights).sum(1, keepdim=True), images.dtype)


def _resize(images: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    if images.shape[1] > 1 and images.numel() > _LARGE:
        return torch.cat([_resize(channel, size, mode) for channel in images.split(1, 1)], 1)
    smooth = mode in ("bilinear", "bicubic")
    resized = F.interpolate(images.float(), size, mode=mode, antialias=smooth)
    return _like(resized, images.dtype)


def _like(images: Tensor, dtype: torch.dtype) -> Tensor:
    return images.round().clamp(0, 255).to(dtype) if dtype == torch.uint8 else images.clamp(0, 1)
