"""Built-in images for first steps: digits of scikit-learn, letters drawn with fonts."""

from __future__ import annotations

import base64
import io
import string
from functools import cache

from PIL import Image

from remembering.data.sources import load
from remembering.runtime.seeding import permutation
from remembering.serving.problems import ProblemError

SETS = {"digits": tuple(string.digits), "letters": tuple(string.ascii_uppercase)}
MAX_COUNT = 100


def samples(name: str, label: str, count: int) -> list[str]:
    """Return images of a label as PNG data URLs, white on black; the same for every call.

    Raises:
        ProblemError: If there is no such set or label.
    """
    if name not in SETS or label not in SETS[name]:
        known = ", ".join(SETS)
        raise ProblemError(404, f"there is no such set or label; the sets are {known}")
    images = _images(name, int(label) if name == "digits" else label)
    return [_data_url(image) for image in images[:count]]


@cache
def _images(name: str, label: str | int) -> list[Image.Image]:
    source = load(name)
    rows = (source.train.labels == source.classes.index(label)).nonzero().flatten()
    # Digits are sorted by writer: without shuffling, all images would be of a few writers.
    rows = rows[permutation(len(rows), 0, "samples")[:MAX_COUNT]]
    images = source.train.images[rows]
    return [Image.fromarray(image[0].numpy()) for image in images]


def _data_url(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
