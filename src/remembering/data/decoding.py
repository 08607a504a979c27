"""Decode image files: every image from outside passes through `decode_image`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from remembering.errors import InvalidFileError, RememberingError, reason
from remembering.runtime.reading import open_regular, read_regular

# Formats that cameras and common programs write. Pillow recognises a format by content, not by
# file name, and knows decoders that start other programs (EPS) or are rarely tested.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000")
MAX_BYTES = 256 * 1024**2
"""Largest accepted image file."""
MAX_PIXELS = MAX_BYTES // 3
"""Largest accepted image: as RGB, it takes `MAX_BYTES`. Pillow warns from the same number on."""
JPEG2000_FACTOR = 4
"""JPEG 2000 images may have so many times fewer pixels: decoding takes 36 bytes for each, and a
file of one kilobyte can have the largest number."""
_CHUNK = 2**22  # values of deep grey images that are converted at once


def read_image(path: Path) -> Tensor:
    """Decode an image file; see `decode_image`.

    Raises:
        InvalidFileError: If the file cannot be read or is not an acceptable image.
    """
    with open_regular(path, MAX_BYTES) as file:
        return decode_image(file, str(path))


def decode_image(
    content: bytes | BinaryIO, where: str, mode: str | None = None, max_pixels: int = MAX_PIXELS
) -> Tensor:
    """Decode one image: upright (EXIF), first frame, grey or RGB, 8 bits.

    Args:
        content: The encoded image.
        where: Description of the image for error messages, such as its path.
        mode: Pillow mode to convert the image to first, such as "RGB". If None, it is kept.
        max_pixels: Largest accepted image; at most `MAX_PIXELS`.

    Returns:
        A uint8 tensor (channels, height, width).

    Raises:
        InvalidFileError: If the image is damaged, not in one of `FORMATS`, or exceeds `MAX_BYTES`
            or `max_pixels`.
    """
    if isinstance(content, bytes):
        if len(content) > MAX_BYTES:
            raise InvalidFileError(
                f"{where} has {len(content):,} bytes; at most {MAX_BYTES:,} are accepted"
            )
        content = io.BytesIO(content)
    try:
        with Image.open(content, formats=FORMATS) as image:
            if image.format == "JPEG2000":
                max_pixels //= JPEG2000_FACTOR
            if image.width * image.height > max_pixels:  # known from the header
                raise _too_large(where, max_pixels)
            ImageOps.exif_transpose(image, in_place=True)
            return pil_to_tensor(_in_mode(image, mode or image.mode))
    except (RememberingError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise InvalidFileError(
            f"{where} is not an image in a supported format ({', '.join(FORMATS)})"
        ) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(where, max_pixels) from error
    except Exception as error:  # decoders raise almost anything on damaged files
        raise InvalidFileError(
            f"{where} is damaged and cannot be decoded ({reason(error)})"
        ) from error


def _too_large(where: str, max_pixels: int) -> InvalidFileError:
    return InvalidFileError(f"{where} has more than {max_pixels:,} pixels; reduce its size first")


def pil_to_tensor(image: Image.Image) -> Tensor:
    """Convert an upright Pillow image to uint8 (channels, height, width), grey or RGB.

    Raises:
        ValueError: If the values of a deep grey image are outside the range of its mode.
    """
    if image.mode.startswith("I") or image.mode == "F":
        array = _deep_grey(image)
    else:
        array = np.asarray(_in_mode(image, "L" if image.mode in ("1", "L", "LA") else "RGB"))
    # Copied, because the memory of a Pillow image is read-only.
    return torch.from_numpy((array[None] if array.ndim == 2 else array.transpose(2, 0, 1)).copy())


def image_bytes(entry: Any, where: str, follow_paths: bool) -> bytes:
    """Return the encoded image of an entry of a data set's image column.

    Args:
        entry: Bytes, a path, or a dictionary with either, as `datasets` stores images.
        where: Description of the entry for error messages.
        follow_paths: Whether an entry without bytes may name a local file. Never for entries that
            were read from a file: they would reveal any file of this machine.

    Raises:
        InvalidFileError: If there is no image, or only a path or URL that must not be followed.
    """
    content, path = (
        (entry.get("bytes"), entry.get("path"))
        if isinstance(entry, dict)
        else (entry, None)
        if isinstance(entry, bytes)
        else (None, entry)
    )
    if isinstance(content, bytes):
        return content
    if not isinstance(path, str):
        raise InvalidFileError(f"{where} holds no image; leave the row out")
    if "://" in path or "::" in path:
        raise InvalidFileError(
            f"{where} holds only an address ({path}), and addresses are not followed; download the "
            "images first"
        )
    if not follow_paths:
        raise InvalidFileError(
            f"{where} holds only a path ({path}), and paths in data files are not followed; store "
            "the images themselves"
        )
    try:
        return read_regular(Path(path), MAX_BYTES)
    except InvalidFileError as error:
        raise InvalidFileError(f"{where} cannot be read: {error}") from error


def image_files(folder: Path) -> list[Path]:
    """List the image files directly in a folder, by suffix, sorted; hidden files are skipped."""
    known = Image.registered_extensions()
    suffixes = {suffix for suffix, kind in known.items() if kind in FORMATS}
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith(".") and path.suffix.lower() in suffixes
    )


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)


def _deep_grey(image: Image.Image) -> np.ndarray[Any, Any]:
    """Scale 16-bit and float grey to 8 bits; Pillow's own conversion clips at 255 instead."""
    top = 1.0 if image.mode == "F" else 65535.0
    values = np.asarray(image)
    result = np.empty(values.size, np.uint8)
    for start in range(0, values.size, _CHUNK):
        chunk = values.reshape(-1)[start : start + _CHUNK].astype(np.float64) / top
        if not ((chunk >= 0) & (chunk <= 1)).all():  # also refuses NaN
            raise ValueError(f"its pixels of mode {image.mode} are not all in 0..{top:g}")
        result[start : start + _CHUNK] = (chunk * 255).round()
    return result.reshape(values.shape)
