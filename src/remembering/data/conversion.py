"""From whatever holds a user's images to an `ImageSequence`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch.utils.data
from PIL import Image
from torch import Tensor

from remembering.data import interop
from remembering.data.arrays import array_to_tensor, stack_to_uint8
from remembering.data.columns import IMAGE_NAMES, image_column, require_column
from remembering.data.found_images import images_at
from remembering.data.images import (
    DatasetImages,
    ImageFiles,
    ImageList,
    ImageSequence,
    ImagesLike,
    LazyImages,
    one_image,
)
from remembering.errors import InvalidInputError


def as_images(images: ImagesLike, count: int | None = None) -> ImageSequence:
    """Convert images to a sequence of uint8 tensors.

    Args:
        images: One of these:

            - a tensor or array of the shape (n, height, width) for grey images,
              (n, channels, height, width) or (n, height, width, channels), with 1, 3 or 4
              channels; a fourth channel (alpha) is dropped. Floats lie in 0..1 and are rounded to
              8 bits; see `denormalise` for normalised ones. The shapes (3, height, width) and
              (4, height, width) are rejected, unless `count` confirms the number of grey images:
              they may also be one colour image;
            - a list or another iterable of tensors, arrays, Pillow images or paths;
            - a single image: (height, width), (height, width, channels), a Pillow image or a path;
            - the path of a folder with images at any depth, or of a table (CSV, Parquet). Images
              that cannot be decoded are left out, and a warning is logged;
            - a `datasets.Dataset`, a data frame with a column of images or paths, a torch dataset
              or data loader. What is iterated (generators, data loaders) is kept in memory.
        count: Number of images, if it is known.

    Raises:
        InvalidInputError: If the type, shape or values are not acceptable.

    >>> as_images(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """
    if isinstance(images, LazyImages):
        return images
    if isinstance(images, np.ndarray | Tensor):
        return stack_to_uint8(array_to_tensor(images, "images"), "images", count)
    if isinstance(images, str | Path):
        return images_at(Path(images))
    if isinstance(images, Image.Image):
        return as_images([images])
    if not isinstance(images, Sequence):
        return _foreign_images(images)
    paths = [Path(image) for image in images if isinstance(image, str | Path)]
    if paths and len(paths) == len(images):
        return ImageFiles(paths)
    return ImageList([one_image(image, f"image {i}") for i, image in enumerate(images)])


def _foreign_images(images: Any) -> ImageSequence:
    """Convert what other libraries hold, and what can only be iterated."""
    if interop.is_dataset(images):
        return DatasetImages(images, image_column(images), follow_paths=True)
    if interop.is_data_frame(images):
        return as_images(list(images[require_column(images.columns, None, IMAGE_NAMES)]))
    if interop.is_torch_dataset(images):
        return interop.TorchImages(images)
    if not isinstance(images, Iterable) or isinstance(images, dict | set | bytes):
        raise InvalidInputError(
            f"images of type {type(images).__name__} are not supported; pass a tensor, an array, "
            "a list of arrays, Pillow images or paths, a dataset, or a data frame"
        )
    if isinstance(images, torch.utils.data.DataLoader):
        return ImageList([image for image, _ in interop.loader_items(images)])
    return as_images(list(images))
