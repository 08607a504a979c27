"""scikit-learn's handwritten digits: 1,797 grey images of 8x8 pixels, part of its installation."""

from __future__ import annotations

from pathlib import Path

import torch

from remembering.data.sources.base import LabelledImages, Source, hold_out
from remembering.errors import InvalidInputError

CLASSES = tuple(range(10))


def load_digits(data: Path | None = None) -> Source:
    """Load the digits with a fifth of each class held out; pixels 0..16 are scaled to 0..255.

    Raises:
        InvalidInputError: If a data folder is passed; there is nothing to read from it.
    """
    if data is not None:
        raise InvalidInputError(
            f"digits are part of the installation and not read from {data}; leave out --data"
        )
    from sklearn import datasets

    bunch = datasets.load_digits()
    pixels = (torch.from_numpy(bunch.images) * (255 / 16)).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    splits = hold_out(LabelledImages(pixels, labels), CLASSES, "digits")
    return Source("digits", splits.train, splits.test, CLASSES)
