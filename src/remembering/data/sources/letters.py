"""Capital letters drawn with matplotlib's fonts: 26 classes of grey images, made on demand."""

from __future__ import annotations

import string
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFont

from remembering.data.sources.base import LabelledImages, Source, hold_out
from remembering.errors import InvalidInputError

CLASSES = tuple(string.ascii_uppercase)
PER_CLASS = 160
SIDE, BOX = 28, 20  # of an image, and of the letter in it, as in MNIST
FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral", "cmss10", "cmr10", "cmtt10")
STYLES = ("", "-Bold", "-Oblique", "-Italic", "-BoldOblique", "-BoldItalic", "Bol", "BolIta")


def load_letters(data: Path | None = None) -> Source:
    """Draw the letters, white on black, with a fifth of each class held out.

    Raises:
        InvalidInputError: If a data folder is passed; there is nothing to read from it.
    """
    if data is not None:
        raise InvalidInputError(f"letters are drawn and not read from {data}; leave out --data")
    images = torch.cat([_letters(letter) for letter in CLASSES])
    labels = torch.arange(len(CLASSES)).repeat_interleave(PER_CLASS)
    splits = hold_out(LabelledImages(images, labels), CLASSES, "letters")
    return Source("letters", splits.train, splits.test, CLASSES)


@cache
def _letters(letter: str) -> torch.Tensor:
    """Draw a letter in all fonts, upright and then shifted and turned at random."""
    rng = np.random.default_rng(ord(letter))
    glyphs = [_render(font, letter) for font in _fonts()]
    images = list(glyphs)
    while len(images) < PER_CLASS:
        glyph = glyphs[len(images) % len(glyphs)]
        angle, shift = rng.uniform(-12, 12), rng.integers(-2, 3, 2).tolist()
        images.append(
            glyph.rotate(angle, Image.Resampling.BILINEAR, translate=(shift[0], shift[1]))
        )
    return torch.from_numpy(np.stack([np.asarray(image) for image in images]))[:, None]


def _fonts() -> list[Path]:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    paths = [folder / f"{font}{style}.ttf" for style in STYLES for font in FONTS]
    return [path for path in paths if path.is_file()]


def _render(font: Path, letter: str) -> Image.Image:
    mask = ImageFont.truetype(str(font), 64).getmask(letter, mode="L")
    glyph = Image.frombytes("L", mask.size, bytes(mask))
    glyph = glyph.crop(glyph.getbbox())
    scale = BOX / max(glyph.size)
    size = (max(1, round(glyph.width * scale)), max(1, round(glyph.height * scale)))
    glyph = glyph.resize(size, Image.Resampling.BOX)
    canvas = Image.new("L", (SIDE, SIDE))
    canvas.paste(glyph, ((SIDE - glyph.width) // 2, (SIDE - glyph.height) // 2))
    return canvas
