"""Select a backbone that suits the images, for users who name none."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from remembering.backbones.backbone import BUNDLED, Backbone
from remembering.data.conversion import as_images
from remembering.data.images import ImagesLike
from remembering.errors import InvalidInputError

AUTO = "auto"
PHOTOS = "facebook/dinov2-small"
"""Backbone for photos; docs/backbones.md states the reasons."""
SMALL = 32
"""Largest side, in pixels, of images for which the bundled backbone is selected."""
SAMPLE = 32
"""Number of images that are looked at."""
_logger = logging.getLogger("remembering")


@dataclass(frozen=True)
class Selection:
    """A backbone and the reason why it was selected."""

    name: str
    reason: str


def select_backbone(images: ImagesLike) -> Selection:
    """Select the bundled backbone for small grey images, and `PHOTOS` for all others.

    The bundled backbone was pretrained on letters at 28 px only.

    Raises:
        InvalidInputError: If there are no images.

    >>> select_backbone(torch.zeros(2, 1, 28, 28)).name
    'bundled'
    """
    sequence = as_images(images)
    if not len(sequence):
        raise InvalidInputError("there are no images to select a backbone by; pass at least one")
    index = torch.linspace(0, len(sequence) - 1, min(SAMPLE, len(sequence))).round().long()
    for image in sequence[index]:
        height, width = image.shape[1:]
        if max(height, width) > SMALL:
            return Selection(PHOTOS, f"images of {width} x {height} px are taken for photos")
        if not _is_grey(image):
            return Selection(PHOTOS, "images in colour are taken for photos")
    return Selection(BUNDLED, f"the images are grey and at most {SMALL} px large")


def load_backbone(
    backbone: str | Path | Backbone,
    images: ImagesLike | None = None,
    image_size: int | None = None,
    device: str | torch.device | None = None,
) -> Backbone:
    """Load a backbone by name or folder; for "auto", log which one was selected and why.

    A backbone from the hub is downloaded once and then read from the hub's cache.

    Args:
        backbone: A folder in hub layout, a hub name, "bundled", "auto", or a loaded backbone.
        images: Some images of the kind to learn; required for "auto", and only there.
        image_size: Input size in pixels, if not the checkpoint's own.
        device: Where to run; a GPU if there is one.

    Raises:
        InvalidInputError: If the arguments contradict each other.
        DownloadError: If it is not in the cache and the hub cannot be reached.
    """
    if images is not None and backbone != AUTO:
        raise InvalidInputError("images are given, but used only with the backbone 'auto'")
    if isinstance(backbone, Backbone):
        if image_size not in (None, backbone.image_size):
            raise InvalidInputError(
                f"the backbone was loaded for {backbone.image_size} px; load it again for "
                f"{image_size} px"
            )
        return backbone
    if backbone == AUTO:
        if images is None:
            raise InvalidInputError(
                "the backbone 'auto' is selected by the images; pass images=..., or name a backbone"
            )
        selected = select_backbone(images)
        _logger.info("selected the backbone '%s': %s", selected.name, selected.reason)
        backbone = selected.name
    return Backbone.load(backbone, image_size, device)


def _is_grey(image: Tensor) -> bool:
    """Return whether the channels (channels, height, width) are equal."""
    return bool((image == image[:1]).all())
