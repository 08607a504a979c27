"""Read the idx files in which MNIST and similar data sets are published, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from remembering.data.sources.base import LabelledImages, Splits, is_present
from remembering.data.task import Label
from remembering.errors import InvalidFileError, RememberingError, reason
from remembering.runtime.reading import open_regular

MAX_VALUES = 1024**3
UNSIGNED_BYTE = 8


def read_idx_folder(folder: Path, classes: tuple[Label, ...]) -> Splits | None:
    """Read the four files in `folder`, whose labels are positions already.

    Returns:
        None if there is none of them.
    """
    names = [
        f"{part}-{kind}"
        for part in ("train", "t10k")
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    ]
    paths = [_find(folder, name) for name in names]
    if not any(paths):
        return None
    tensors = []
    for name, path, axes in zip(names, paths, (3, 1, 3, 1), strict=True):
        if path is None:
            raise InvalidFileError(f"{folder} has other idx files but no {name}; add it")
        tensors.append(read_idx(path, axes))
    train_images, train_labels, test_images, test_labels = tensors
    return Splits(
        LabelledImages(train_images[:, None], train_labels.long()),
        LabelledImages(test_images[:, None], test_labels.long()),
    )


def read_idx(path: Path, axes: int) -> Tensor:
    """Read a file of unsigned bytes.

    Format: two zero bytes, the type, the number of axes, the big-endian length of each axis, the
    values.

    Args:
        path: The file; gzipped if its suffix is ".gz".
        axes: The expected number of axes.

    Raises:
        InvalidFileError: If the file is damaged or of another kind.
    """
    try:
        with open_regular(path, 2 * MAX_VALUES) as raw:
            file = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            zeros, kind, found = struct.unpack(">HBB", file.read(4))
            if (zeros, kind, found) != (0, UNSIGNED_BYTE, axes):
                raise InvalidFileError(
                    f"{path} is not an idx file of bytes with {axes} axes; download it again"
                )
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
            count = math.prod(shape)
            # One more byte shows a file that is too long.
            values = file.read(count + 1) if count <= MAX_VALUES else b""
    except RememberingError:
        raise
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise InvalidFileError(f"{path} is damaged ({reason(error)}); download it again") from error
    if len(values) != count:
        raise InvalidFileError(
            f"{path} is damaged (its header announces {count} values); download it again"
        )
    return torch.from_numpy(np.frombuffer(values, np.uint8).reshape(shape).copy())


def _find(folder: Path, name: str) -> Path | None:
    # Some archives spell "train-images.idx3-ubyte".
    spellings = (name, name.replace("-idx", ".idx"))
    candidates = [folder / f"{spelling}{end}" for spelling in spellings for end in ("", ".gz")]
    return next((path for path in candidates if is_present(path)), None)
