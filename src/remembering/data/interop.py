"""Images and labels that other libraries hold: datasets, pandas, and PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch.utils.data
from torch import Tensor

from remembering.data.arrays import denormalise
from remembering.data.images import ImageBatch, LazyImages, one_image

Statistics = Sequence[float] | None
"""Mean or standard deviation of each channel, or None for images that are not normalised."""


class TorchImages(LazyImages):
    """The images of a map-style torch dataset, read on access.

    Args:
        dataset: Its items are images, or tuples or dictionaries with an image.
        mean: Mean by which its images were normalised.
        std: Standard deviation by which they were normalised.
    """

    def __init__(self, dataset: Any, mean: Statistics = None, std: Statistics = None):
        self.dataset, self.mean, self.std = dataset, mean, std

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Tensor, /) -> ImageBatch:
        return ImageBatch([partial(self._read, i) for i in index.tolist()])

    def _read(self, position: int) -> Tensor:
        image = item_parts(self.dataset[position])[0]
        return _plain(image, self.mean, self.std, f"item {position}")


def loader_items(
    loader: Iterable[Any], mean: Statistics = None, std: Statistics = None
) -> Iterator[tuple[Tensor, Any]]:
    """Yield the images of a data loader's batches with their labels, or None without labels."""
    for batch in loader:
        images, labels = item_parts(batch)
        rows = labels.tolist() if hasattr(labels, "tolist") else labels
        for i in range(len(images)):
            yield _plain(images[i], mean, std, "an image"), rows[i] if rows is not None else None


def item_parts(item: Any) -> tuple[Any, Any]:
    """Return image and label of an item or batch; None for a label that is missing."""
    if isinstance(item, dict):
        known = ("image", "pixel_values"), ("label", "labels")
        image, label = (next((item[k] for k in keys if k in item), None) for keys in known)
        return image, label
    if isinstance(item, tuple | list):
        return item[0], item[1] if len(item) > 1 else None
    return item, None


def is_dataset(images: object) -> bool:
    """Return whether this is a dataset of the `datasets` library, which need not be imported."""
    return _is(images, "datasets", "Dataset")


def is_data_frame(images: object) -> bool:
    """Return whether this is a data frame of pandas, which need not be installed."""
    return _is(images, "pandas", "DataFrame")


def is_torch_dataset(images: object) -> bool:
    """Return whether this is a torch dataset with random access."""
    return isinstance(images, torch.utils.data.Dataset) and hasattr(images, "__len__")


def _is(value: object, package: str, name: str) -> bool:
    return any(
        kind.__name__ == name and kind.__module__.partition(".")[0] == package
        for kind in type(value).__mro__
    )


def _plain(image: Any, mean: Statistics, std: Statistics, where: str) -> Tensor:
    """Return an image as uint8 (channels, height, width)."""
    if mean is not None and std is not None and isinstance(image, Tensor):
        image = denormalise(image, mean, std)
    return one_image(image, where)
