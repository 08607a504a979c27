"""Built-in images for first steps: digits of scikit-learn, letters of matplotlib's fonts."""

from __future__ import annotations

import base64
import io
import string
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageFont

from remembering.data.sources import load
from remembering.runtime.seeding import permutation
from remembering.serving.problems import ProblemError

SETS = {"digits": tuple(string.digits), "letters": tuple(string.ascii_uppercase)}
MAX_COUNT = 100
_SIDE, _BOX = 28, 20  # of an image, and of the letter in it, as in MNIST
_FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral", "cmss10", "cmr10", "cmtt10")
_STYLES = ("", "-Bold", "-Oblique", "-Italic", "-BoldOblique", "-BoldItalic", "Bol", "BolIta")


def samples(name: str, label: str, count: int) -> list[str]:
    """Return images of a label as PNG data URLs, white on black; the same for every call.

    Raises:
        ProblemError: If there is no such set or label.
    """
    if name not in SETS or label not in SETS[name]:
        known = ", ".join(SETS)
        raise ProblemError(404, f"there is no such set or label; the sets are {known}")
    images = _digits(int(label)) if name == "digits" else _letters(label)
    return [_data_url(image) for image in images[:count]]


@cache
def _digits(label: int) -> list[Image.Image]:
    source = load("digits").train
    rows = (source.labels == label).nonzero().flatten()
    # The files are sorted by writer: without shuffling, all images would be of a few writers.
    rows = rows[permutation(len(rows), 0, "samples")[:MAX_COUNT]]
    return [Image.fromarray(image[0].numpy()) for image in source.images[rows]]


@cache
def _letters(letter: str) -> list[Image.Image]:
    """Draw a letter in all fonts, upright and then shifted and turned at random."""
    rng = np.random.default_rng(ord(letter))
    glyphs = [_render(font, letter) for font in _fonts()]
    images = list(glyphs)
    while len(images) < MAX_COUNT:
        glyph = glyphs[len(images) % len(glyphs)]
        angle, shift = rng.uniform(-12, 12), rng.integers(-2, 3, 2).tolist()
        images.append(
            glyph.rotate(angle, Image.Resampling.BILINEAR, translate=(shift[0], shift[1]))
        )
    return images


def _fonts() -> list[Path]:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    paths = [folder / f"{font}{style}.ttf" for style in _STYLES for font in _FONTS]
    return [path for path in paths if path.is_file()]


def _render(font: Path, letter: str) -> Image.Image:
    mask = ImageFont.truetype(str(font), 64).getmask(letter, mode="L")
    glyph = Image.frombytes("L", mask.size, bytes(mask))
    glyph = glyph.crop(glyph.getbbox())
    scale = _BOX / max(glyph.size)
    glyph = glyph.resize(
        (max(1, round(glyph.width * scale)), max(1, round(glyph.height * scale))),
        Image.Resampling.BOX,
    )
    canvas = Image.new("L", (_SIDE, _SIDE))
    canvas.paste(glyph, ((_SIDE - glyph.width) // 2, (_SIDE - glyph.height) // 2))
    return canvas


def _data_url(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
