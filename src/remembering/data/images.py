"""Images in, uint8 tensors out: the one place that decides what counts as an image.

Everything downstream sees an `ImageSequence`: indexed by a tensor of positions, it gives a uint8
tensor (n, channels, height, width), or a list of (channels, height, width) where sizes differ.
A plain uint8 tensor is one already; files and datasets are decoded only when they are asked for.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from remembering.errors import RememberingError

if TYPE_CHECKING:
    import datasets


# What cameras and programs write. PIL reads more, but goes by content: a file named .png could
# otherwise reach decoders that run other programs (EPS) or are little tested.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000")


class ImageSequence(Protocol):
    """Images by position. `images[torch.tensor([3, 1])]` are the fourth and the second."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor, /) -> Tensor | list[Tensor]: ...


class LazyImages(ABC):
    """Base of the sequences that are no plain tensor."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: Tensor, /) -> Tensor | list[Tensor]: ...


class ImageList(LazyImages):
    """Decoded images of different sizes."""

    def __init__(self, images: Sequence[Tensor]):
        self.images = list(images)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Tensor, /) -> list[Tensor]:
        return [self.images[i] for i in index.tolist()]


class ImageFiles(LazyImages):
    """Image files, decoded each time they are asked for."""

    def __init__(self, paths: Sequence[Path]):
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Tensor, /) -> list[Tensor]:
        return [read_image(self.paths[i]) for i in index.tolist()]


class DatasetImages(LazyImages):
    """The image column of a `datasets.Dataset`: memory-mapped, decoded when asked for."""

    def __init__(self, dataset: datasets.Dataset, column: str):
        self.dataset, self.column = dataset, column

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Tensor, /) -> list[Tensor]:
        try:
            rows = self.dataset[index.tolist()][self.column]
        except OSError as error:
            raise RememberingError(
                f"an image in rows {index.min()} to {index.max()} of column '{self.column}' "
                f"cannot be read ({error}); remove it from the dataset"
            ) from error
        return [one_image(row, f"row {i}") for i, row in zip(index.tolist(), rows, strict=True)]


class Subset(LazyImages):
    """Some of the images, in a given order, without copying or decoding them."""

    def __init__(self, images: ImageSequence, index: Tensor):
        self.images, self.index = images, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: Tensor, /) -> Tensor | list[Tensor]:
        return self.images[self.index[index]]


class Joined(LazyImages):
    """Several sequences of images, one after the other."""

    def __init__(self, parts: Sequence[ImageSequence]):
        self.parts = list(parts)
        self.ends = torch.tensor([len(part) for part in parts]).cumsum(0)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: Tensor, /) -> list[Tensor]:
        which = torch.searchsorted(self.ends, index, right=True)
        images: list[Tensor] = [torch.empty(0)] * len(index)
        for part in which.unique().tolist():
            rows = (which == part).nonzero().squeeze(1)
            start = int(self.ends[part]) - len(self.parts[part])
            for row, image in zip(
                rows.tolist(), self.parts[part][index[rows] - start], strict=True
            ):
                images[row] = image
        return images


ImagesLike = Any


def joined(parts: Sequence[ImageSequence]) -> ImageSequence:
    """Several sequences as one: tensors of one size become a tensor, anything else stays lazy."""
    shapes = {part.shape[1:] if isinstance(part, Tensor) else None for part in parts}
    if len(shapes) == 1 and None not in shapes:
        return torch.cat(list(parts))  # type: ignore[arg-type]
    return Joined(parts)


def subset(images: ImageSequence, index: Tensor) -> ImageSequence:
    """`images` at `index`: a tensor is sliced at once, anything else stays lazy."""
    return images[index] if isinstance(images, Tensor) else Subset(images, index)


def as_images(images: Any) -> ImageSequence:
    """Accept whatever users hold: a tensor, an array, a list of either, PIL images or files.

    Stacks are (n, height, width) for grey images, or (n, channels, height, width) or
    (n, height, width, channels) with 1, 3 or 4 channels. Floats lie in 0..1 and are kept with
    8 bits, as image files are. A fourth channel (alpha) is dropped.

    >>> as_images(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """
    if isinstance(images, LazyImages):
        return images
    if isinstance(images, np.ndarray | Tensor):
        return _stack(_tensor(images, "images"), "images")
    if isinstance(images, str | Path | Image.Image):
        return as_images([images])
    if not isinstance(images, Sequence):
        raise RememberingError(
            f"images of type {type(images).__name__} are not understood; give a tensor, an array, "
            "or a list of arrays, PIL images or file names"
        )
    if images and all(isinstance(image, str | Path) for image in images):
        return ImageFiles([Path(image) for image in images])
    return ImageList([one_image(image, f"image {i}") for i, image in enumerate(images)])


def one_image(image: Any, where: str) -> Tensor:
    """One decoded image, uint8 (channels, height, width); `where` names it in an error."""
    if isinstance(image, Image.Image):
        try:
            return _from_pil(image)
        except (OSError, ValueError, SyntaxError) as error:  # decoded only now, and damaged
            raise RememberingError(f"{where} cannot be read ({error})") from error
    if isinstance(image, str | Path):
        return read_image(Path(image))
    if not isinstance(image, np.ndarray | Tensor):
        raise RememberingError(f"{where} is a {type(image).__name__}, not an image")
    pixels = _tensor(image, where)
    if pixels.ndim not in (2, 3):
        raise RememberingError(f"{where} has shape {tuple(pixels.shape)}; an image has 2 or 3 axes")
    result: Tensor = _stack(pixels[None], where)[torch.tensor([0])][0]
    return result


def read_image(path: Path) -> Tensor:
    """Decode one file: upright (EXIF), first frame, grey or RGB, 8 bits."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PIL warns of odd tags that change no pixel
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                return _from_pil(image)
    except FileNotFoundError as error:
        raise RememberingError(f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise RememberingError(f"{path} is a folder, not an image") from error
    except UnidentifiedImageError as error:
        raise RememberingError(f"{path} is not an image that can be read") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RememberingError(
            f"{path} has more than {Image.MAX_IMAGE_PIXELS:,} pixels; make it smaller first"
        ) from error
    except Exception as error:  # decoders raise almost anything on damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RememberingError(f"{path} is damaged and cannot be read ({reason})") from error


def image_files(folder: Path) -> list[Path]:
    """The image files directly in a folder, by suffix, sorted; hidden files are passed over."""
    known = Image.registered_extensions()
    suffixes = {suffix for suffix, kind in known.items() if kind in FORMATS}
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith(".") and path.suffix.lower() in suffixes
    )


def class_folders(folder: Path) -> tuple[ImageFiles, list[str]]:
    """A folder of class folders: the files, and for each the name of the folder it lies in."""
    if not folder.is_dir():
        raise RememberingError(f"{folder} is not a folder; give a folder with one folder per class")
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise RememberingError(
            f"{folder} holds no class folders; put the images of each class in a folder of its own"
        )
    paths: list[Path] = []
    labels: list[str] = []
    for class_folder in classes:
        files = image_files(class_folder)
        if not files:
            raise RememberingError(f"{class_folder} holds no images; add some or remove the folder")
        paths += files
        labels += [class_folder.name] * len(files)
    return ImageFiles(paths), labels


def _from_pil(image: Image.Image) -> Tensor:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        # Deep greys: PIL's own conversion clips at 255 instead of scaling.
        top = 1.0 if image.mode == "F" else 65535.0
        values = np.asarray(image, dtype=np.float64) / top
        if not ((values >= 0) & (values <= 1)).all():  # also refuses NaN
            raise ValueError(f"its pixels of mode {image.mode} are not all in 0..{top:g}")
        array = (values * 255).round().astype(np.uint8)
    else:
        array = np.array(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    pixels = torch.from_numpy(array)
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def _tensor(array: np.ndarray[Any, Any] | Tensor, where: str) -> Tensor:
    if isinstance(array, Tensor):
        wide = array.dtype in (torch.uint16, torch.uint32, torch.uint64)
        array = array.to(torch.int64) if wide else array
        if array.is_complex():
            raise RememberingError(f"{where} have the type {array.dtype}; pixels are real numbers")
        return array
    if array.dtype.kind == "u" and array.dtype != np.uint8:
        array = array.astype(np.int64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        return _tensor(torch.from_numpy(np.ascontiguousarray(array)), where)
    except TypeError as error:
        raise RememberingError(
            f"{where} have the type {array.dtype}, which is no number"
        ) from error


def _stack(images: Tensor, where: str) -> ImageSequence:
    if images.ndim == 3 and images.shape[-1] in (1, 3, 4) and images.shape[1] > 4:
        raise RememberingError(
            f"{where} of shape {tuple(images.shape)} look like one image with its channels last; "
            "give a stack of images: images[None]"
        )
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4:
        raise RememberingError(
            f"{where} have {images.ndim} axes; give (n, height, width), "
            "(n, channels, height, width) or (n, height, width, channels)"
        )
    if images.shape[1] not in (1, 3, 4) and images.shape[3] in (1, 3, 4):
        images = images.permute(0, 3, 1, 2)
    if images.shape[1] not in (1, 3, 4):
        raise RememberingError(
            f"{where} of shape {tuple(images.shape)} have no axis of 1, 3 or 4 channels"
        )
    if min(images.shape[2:]) == 0:
        raise RememberingError(f"{where} of shape {tuple(images.shape)} have no pixels")
    return _to_uint8(images[:, :3], where).contiguous()


def _to_uint8(images: Tensor, where: str) -> Tensor:
    if images.dtype == torch.uint8:
        return images
    if images.dtype == torch.bool:
        return images.to(torch.uint8) * 255
    if not images.is_floating_point():
        if images.numel() and (images.min() < 0 or images.max() > 255):
            raise RememberingError(f"{where} have whole-number pixels outside 0..255")
        return images.to(torch.uint8)
    if not torch.isfinite(images).all():
        bad = (~torch.isfinite(images)).flatten(1).any(1).nonzero()[0].item()
        raise RememberingError(
            f"{where} have pixels that are NaN or infinite, first in image {bad}"
        )
    if images.numel() and (images.min() < -1e-6 or images.max() > 1 + 1e-6):
        raise RememberingError(
            f"{where} have pixels from {images.min():.3g} to {images.max():.3g}; floats must lie "
            "in 0..1 (divide by 255, or give uint8)"
        )
    return (images * 255).round().clamp(0, 255).to(torch.uint8)
