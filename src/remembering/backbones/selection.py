"""Select a backbone that suits the images, for users who name none."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from remembering.backbones.backbone import BUNDLED, Backbone
from remembering.data.images import ImagesLike, as_images
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

    The bundled backbone has seen nothing but letters at 28 px.

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


def load_selected(
    images: ImagesLike, image_size: int | None = None, device: str | torch.device | None = None
) -> Backbone:
    """Load the backbone that `select_backbone` selects, and log which one it is and why.

    A backbone from the hub is downloaded once and then read from the hub's cache.

    Raises:
        DownloadError: If it is not in the cache and the hub cannot be reached.
    """
    selected = select_backbone(images)
    _logger.info("selected the backbone '%s': %s", selected.name, selected.reason)
    return Backbone.load(selected.name, image_size, device)


def _is_grey(image: Tensor) -> bool:
    """Return whether the channels (channels, height, width) are equal."""
    return bool((image == image[:1]).all())
