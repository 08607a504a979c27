"""Create the model of a folder that does not contain one yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from remembering.errors import RememberingError

if TYPE_CHECKING:
    from remembering.config import Settings
    from remembering.data.images import ImageSequence
    from remembering.model import RememberingTransformer


def create(
    folder: Path,
    backbone: str | None,
    image_size: int | None,
    images: ImageSequence,
    settings: Settings | None = None,
    device: str | None = None,
) -> RememberingTransformer:
    """Create a model; without a backbone, one is selected by the images.

    Raises:
        RememberingError: If the folder contains other files, or the backbone cannot be loaded.
    """
    from remembering.backbones.selection import AUTO
    from remembering.model import RememberingTransformer
    from remembering.storage.layout import in_use

    if in_use(folder):
        raise RememberingError(
            f"{folder} is not empty and contains no model; choose another folder"
        )
    name = backbone or AUTO
    return RememberingTransformer.from_backbone(
        name,
        settings,
        images=images if name == AUTO else None,
        image_size=image_size,
        device=device,
    )
