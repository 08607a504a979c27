"""Pixels as a checkpoint wants them: size, crop, channels, scale.

What transformers' image processors do image by image on the host, done for whole batches on the
device. Resizing follows the rule of the checkpoint's `preprocessor_config.json` and, like theirs,
rounds back to 8 bits, so that a resized image can be kept as uint8 without changing any answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# PIL's resampling codes. Torch has no Lanczos, box or Hamming: bicubic and bilinear stand in.
_MODES = {
    0: "nearest-exact",
    1: "bicubic",
    2: "bilinear",
    3: "bicubic",
    4: "bilinear",
    5: "bilinear",
}
LONGEST = 8
"""A side this many times as long as the other says nothing more once the centre is cropped."""
_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, the weights that PIL's "L" uses


@dataclass(frozen=True)
class Preprocessing:
    """From images of any size and channel count to a checkpoint's input."""

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mode: str = "bilinear"
    edge: int | None = None  # resize to this, then crop `size` from the centre
    keeps_ratio: bool = False  # the shorter side becomes `edge`, not both

    @classmethod
    def from_config(cls, config: Path | None, size: int, channels: int) -> Preprocessing:
        """Read `preprocessor_config.json`; without one, ViT's defaults (bilinear, 0.5, 0.5)."""
        spec: dict[str, Any] = json.loads(config.read_text()) if config else {}
        # Some processors write null for what they leave at its default.
        spec = {key: value for key, value in spec.items() if value is not None}
        wanted = spec.get("size", size)
        if isinstance(wanted, int):  # CLIP's processor means the shorter side, all others both
            kind = str(spec.get("image_processor_type", spec.get("feature_extractor_type", "")))
            wanted = {"shortest_edge" if kind.startswith("CLIP") else "height": wanted}
        crop = spec.get("crop_size", wanted) if spec.get("do_center_crop") else None
        if isinstance(crop, int):
            crop = {"height": crop}
        shorter = wanted.get("shortest_edge")
        normal = spec.get("do_normalize", True)
        result = cls(
            size=(crop or wanted).get("height", shorter or size),
            channels=channels,
            mean=_per_channel(spec.get("image_mean", 0.5) if normal else 0.0, channels),
            std=_per_channel(spec.get("image_std", 0.5) if normal else 1.0, channels),
            mode=_MODES[spec.get("resample", 2)],
            edge=shorter or (wanted["height"] if crop and "height" in wanted else None),
            keeps_ratio=shorter is not None,
        )
        return result.resized(size)

    def resized(self, size: int) -> Preprocessing:
        """The same for another input size; the margin that is cropped away keeps its share."""
        edge = self.edge and round(self.edge * size / self.size)
        return replace(self, size=size, edge=edge)

    def prepare(self, images: Tensor | list[Tensor]) -> Tensor:
        """Resize, crop and match channels: (n, channels, size, size), uint8 stays uint8."""
        return self._square(images, self.size)

    def shrink(self, images: Tensor | list[Tensor]) -> Tensor:
        """As `prepare`, but the margin that it crops is still there: for images to keep or turn.

        What `prepare` makes of the outcome is what it makes of the images, but for a shift by a
        pixel where margins are odd; to prepare twice would enlarge them.
        """
        return self._square(images, max(self.size, self.edge or 0))

    def _square(self, images: Tensor | list[Tensor], side: int) -> Tensor:
        """Resized for `size`, and cropped from the centre to this side."""
        if isinstance(images, list):
            return torch.cat([self._square(image[None], side) for image in images])
        images = _match_channels(images, self.channels)
        if self.keeps_ratio:
            images = _within(images, LONGEST)
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
        """Prepared images (uint8 in 0..255, float in 0..1) to the network's input."""
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1)
        scale = 255.0 if images.dtype == torch.uint8 else 1.0
        return (images.float() - mean * scale) / (std * scale)


def _within(images: Tensor, ratio: int) -> Tensor:
    """Without the ends of a side that is more than so many times the other: they would be cropped
    later, and to enlarge them first could take all memory."""
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
    weights = torch.tensor(_LUMA, device=images.device).view(-1, 1, 1)
    return _like((images.float() * weights).sum(1, keepdim=True), images.dtype)


def _resize(images: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    smooth = mode in ("bilinear", "bicubic")
    resized = F.interpolate(images.float(), size, mode=mode, antialias=smooth)
    return _like(resized, images.dtype)


def _like(images: Tensor, dtype: torch.dtype) -> Tensor:
    return images.round().clamp(0, 255).to(dtype) if dtype == torch.uint8 else images.clamp(0, 1)
