"""The idx files in which MNIST and its relatives are published, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from remembering.data.sources.base import LabelledImages, Splits, reason
from remembering.data.task import Label
from remembering.errors import RememberingError

UNSIGNED_BYTE = 8


def read_idx_folder(folder: Path, classes: tuple[Label, ...]) -> Splits | None:
    """The four files in `folder`; None if there is none of them. Labels are already positions."""
    names = [
        f"{part}-{kind}"
        for part in ("train", "t10k")
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    ]
    paths = [_published(folder, name) for name in names]
    if not any(paths):
        return None
    tensors = []
    for name, path, axes in zip(names, paths, (3, 1, 3, 1), strict=True):
        if path is None:
            raise RememberingError(f"{folder} has other idx files but no {name}; add it")
        tensors.append(read_idx(path, axes))
    train_images, train_labels, test_images, test_labels = tensors
    return Splits(
        LabelledImages(train_images[:, None], train_labels.long()),
        LabelledImages(test_images[:, None], test_labels.long()),
    )


def read_idx(path: Path, axes: int) -> Tensor:
    """One file of unsigned bytes with this number of axes.

    Two zero bytes, the type, the number of axes, the big-endian length of each axis, the values.
    """
    try:
        with _open(path) as file:
            zeros, kind, found = struct.unpack(">HBB", file.read(4))
            if (zeros, kind, found) != (0, UNSIGNED_BYTE, axes):
                raise RememberingError(
                    f"{path} is not an idx file of bytes with {axes} axes; get it again"
                )
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
            # One byte more than promised tells a file that is too long.
            values = file.read(math.prod(shape) + 1)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise RememberingError(f"{path} is damaged ({reason(error)}); get it again") from error
    if len(values) != math.prod(shape):
        raise RememberingError(
            f"{path} is damaged (its header promises {math.prod(shape)} values); get it again"
        )
    return torch.from_numpy(np.frombuffer(values, np.uint8).reshape(shape).copy())


def _published(folder: Path, name: str) -> Path | None:
    # Some archives spell "train-images.idx3-ubyte".
    spellings = (name, name.replace("-idx", ".idx"))
    candidates = [folder / f"{spelling}{end}" for spelling in spellings for end in ("", ".gz")]
    return next((path for path in candidates if path.is_file()), None)


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")
