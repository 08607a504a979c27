"""Sequences of images, decoded to uint8 tensors on access.

Code downstream works on an `ImageSequence`. Indexing one with a tensor of positions returns a
batch: a uint8 tensor (n, channels, height, width), or a sequence of tensors (channels, height,
width) if sizes may differ. A plain uint8 tensor is an `ImageSequence` already; files and datasets
are decoded only when a batch is iterated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from remembering.data.arrays import array_to_tensor, stack_to_uint8
from remembering.data.decoding import (
    decode_image,
    image_bytes,
    pil_to_tensor,
    read_image,
)
from remembering.errors import InvalidFileError, InvalidInputError, reason

if TYPE_CHECKING:
    import datasets

CACHE_BYTES = 256 * 1024**2
"""RAM budget of one batch: decoded images beyond it are decoded again in every pass."""

Images: TypeAlias = Tensor | Sequence[Tensor]
"""A batch: one tensor (n, channels, height, width), or tensors (channels, height, width)."""


class ImageSequence(Protocol):
    """Images by position: `images[torch.tensor([3, 1])]` is a batch of the fourth and second."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor, /) -> Images: ...


ImageLike: TypeAlias = np.ndarray[Any, Any] | Tensor | Image.Image | str | Path
"""One image: an array, a Pillow image or the path of a file."""
ImagesLike: TypeAlias = ImageSequence | ImageLike | Iterable[Any]
"""What `data.conversion.as_images` accepts."""


class ImageBatch(Sequence[Tensor]):
    """A batch of images of any sizes, decoded one at a time.

    Decoded images are kept for further passes while they fit into `cache_bytes`. Large images are
    therefore never all in memory at once.

    Args:
        decoders: One function per image that returns it as (channels, height, width).
        cache_bytes: RAM budget for decoded images. By default `CACHE_BYTES`.
    """

    def __init__(self, decoders: Sequence[Callable[[], Tensor]], cache_bytes: int | None = None):
        self._decoders = list(decoders)
        self._cache: dict[int, Tensor] = {}
        self._free = CACHE_BYTES if cache_bytes is None else cache_bytes

    def __len__(self) -> int:
        return len(self._decoders)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> ImageBatch: ...

    def __getitem__(self, index: int | slice) -> Tensor | ImageBatch:
        if isinstance(index, slice):
            places = range(len(self))[index]
            return ImageBatch([partial(self.__getitem__, i) for i in places], cache_bytes=0)
        position = range(len(self))[index]
        if position in self._cache:
            return self._cache[position]
        image = self._decoders[position]()
        if image.nbytes <= self._free:
            self._free -= image.nbytes
            self._cache[position] = image
        return image

    def map(self, function: Callable[[Tensor], Tensor]) -> ImageBatch:
        """Return a batch that applies `function` to each image when it is accessed."""
        return ImageBatch([partial(self._mapped, function, i) for i in range(len(self))], 0)

    def _mapped(self, function: Callable[[Tensor], Tensor], position: int) -> Tensor:
        return function(self[position])


class LazyImages(ABC):
    """Base class of image sequences other than plain tensors."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: Tensor, /) -> Images: ...


class ImageList(LazyImages):
    """Decoded images of any sizes."""

    def __init__(self, images: Sequence[Tensor]):
        self.images = list(images)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Tensor, /) -> list[Tensor]:
        return [self.images[i] for i in index.tolist()]


class ImageFiles(LazyImages):
    """Image files, decoded on access."""

    def __init__(self, paths: Sequence[Path]):
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Tensor, /) -> ImageBatch:
        return ImageBatch([partial(read_image, self.paths[i]) for i in index.tolist()])


class DatasetImages(LazyImages):
    """The image column of a `datasets.Dataset`: memory-mapped, decoded on access.

    Args:
        dataset: The dataset.
        column: Name of the image column. No other column is read.
        follow_paths: Whether images may be stored as paths of local files. Only for datasets that
            the user built in Python, never for those read from files; see `image_bytes`.
    """

    def __init__(self, dataset: datasets.Dataset, column: str, *, follow_paths: bool = False):
        import datasets

        feature = dataset.features[column]
        dataset = dataset.with_format(None).select_columns([column])
        self._mode: str | None = None
        if isinstance(feature, datasets.Image):  # `datasets` itself would decode any format
            self._mode = feature.mode
            dataset = dataset.cast_column(column, datasets.Image(decode=False))
        self.dataset, self.column, self.follow_paths = dataset, column, follow_paths

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Tensor, /) -> ImageBatch:
        try:
            entries = self.dataset[index.tolist()][self.column]
        except OSError as error:
            raise InvalidFileError(
                f"rows {index.min()} to {index.max()} of column '{self.column}' cannot be read "
                f"({reason(error)})"
            ) from error
        rows = zip(index.tolist(), entries, strict=True)
        return ImageBatch([partial(self._decode, position, entry) for position, entry in rows])

    def _decode(self, position: int, entry: Any) -> Tensor:
        where = f"row {position} of column '{self.column}'"
        return decode_image(image_bytes(entry, where, self.follow_paths), where, self._mode)


class Subset(LazyImages):
    """Some images of a sequence in a specified order, neither copied nor decoded."""

    def __init__(self, images: ImageSequence, index: Tensor):
        self.images, self.index = images, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: Tensor, /) -> Images:
        return self.images[self.index[index]]


class Joined(LazyImages):
    """Several image sequences, one after the other."""

    def __init__(self, parts: Sequence[ImageSequence]):
        self.parts = list(parts)
        self.ends = torch.tensor([len(part) for part in parts]).cumsum(0)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: Tensor, /) -> ImageBatch:
        which = torch.searchsorted(self.ends, index, right=True)
        decoders: dict[int, Callable[[], Tensor]] = {}
        for part in which.unique().tolist():
            rows = (which == part).nonzero().squeeze(1)
            start = int(self.ends[part]) - len(self.parts[part])
            batch = self.parts[part][index[rows] - start]
            decoders |= {row: partial(batch.__getitem__, i) for i, row in enumerate(rows.tolist())}
        return ImageBatch([decoders[row] for row in range(len(index))], cache_bytes=0)


def joined(parts: Sequence[ImageSequence]) -> ImageSequence:
    """Concatenate sequences: tensors of one image size become a tensor, others stay lazy."""
    if all(isinstance(part, ImageFiles) for part in parts):
        return ImageFiles([path for part in parts for path in image_paths(part) or ()])
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if len(tensors) == len(parts) and len({tensor.shape[1:] for tensor in tensors}) == 1:
        return torch.cat(tensors)
    return Joined(parts)


def image_paths(images: ImageSequence) -> list[Path] | None:
    """Return the path of each image, if they are files."""
    return images.paths if isinstance(images, ImageFiles) else None


def subset(images: ImageSequence, index: Tensor) -> ImageSequence:
    """Select images by position: a tensor is indexed at once, other sequences stay lazy."""
    if isinstance(images, ImageFiles):
        return ImageFiles([images.paths[i] for i in index.tolist()])
    return images[index] if isinstance(images, Tensor) else Subset(images, index)


def one_image(image: Any, where: str) -> Tensor:
    """Convert one image to uint8 (channels, height, width).

    Args:
        image: An array, a Pillow image, or the path of a file.
        where: Description of the image for error messages.

    Raises:
        InvalidInputError: If the type, shape or values are not acceptable.
    """
    if isinstance(image, Image.Image):
        try:
            return pil_to_tensor(ImageOps.exif_transpose(image))
        except (OSError, ValueError, SyntaxError) as error:  # decoded only now, and damaged
            raise InvalidInputError(f"{where} cannot be decoded ({error})") from error
    if isinstance(image, str | Path):
        return read_image(Path(image))
    if not isinstance(image, np.ndarray | Tensor):
        raise InvalidInputError(f"{where} is of type {type(image).__name__}, which is not an image")
    pixels = array_to_tensor(image, where)
    if pixels.ndim not in (2, 3):
        raise InvalidInputError(
            f"{where} has shape {tuple(pixels.shape)}; an image has 2 or 3 axes"
        )
    return stack_to_uint8(pixels[None, None] if pixels.ndim == 2 else pixels[None], where)[0]
