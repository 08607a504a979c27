"""Pretrain the bundled backbone: a small ViT that learns to read letters, never digits.

    python scripts/pretrain_glyphs.py                # about 25 minutes on two CPU cores
    python scripts/pretrain_glyphs.py --probe-only   # measure the saved weights again

The training images are letters of many alphabets, rendered from the fonts that ship with
matplotlib and distorted at random. Digits of every script are left out, so that digit tasks
built on this backbone are new to it. The result is a folder in the layout of the Hugging Face
hub, with a model card whose numbers this script writes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageFont
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from transformers import ViTConfig, ViTModel

ASSET = Path(__file__).resolve().parents[1] / "src" / "remembering" / "assets" / "glyph-vit"

SIZE = 28  # side of the network's input
CANVAS = 56  # side of a cached glyph image, twice the input so that enlarging stays sharp
BOX = 40  # longest side of a glyph inside its canvas: 20 of 28 pixels, as in MNIST
MEAN, STD = 0.5, 0.5

# Fonts to draw with, and which characters of each to trust. The Computer Modern files predate
# Unicode: outside of ASCII (and in cmsy10 outside of the capitals) their slots hold other signs.
ASCII_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ASCII_LETTERS = ASCII_UPPER + ASCII_UPPER.lower()
FONTS: dict[str, str | None] = {
    "DejaVuSans.ttf": None,  # first, because it covers the most: look-alikes are judged in it
    "DejaVuSans-Bold.ttf": None,
    "DejaVuSans-Oblique.ttf": None,
    "DejaVuSans-BoldOblique.ttf": None,
    "DejaVuSansMono.ttf": None,
    "DejaVuSansMono-Bold.ttf": None,
    "DejaVuSansMono-Oblique.ttf": None,
    "DejaVuSansMono-BoldOblique.ttf": None,
    "DejaVuSerif.ttf": None,
    "DejaVuSerif-Bold.ttf": None,
    "DejaVuSerif-Italic.ttf": None,
    "DejaVuSerif-BoldItalic.ttf": None,
    "STIXGeneral.ttf": None,
    "STIXGeneralBol.ttf": None,
    "STIXGeneralItalic.ttf": None,
    "STIXGeneralBolIta.ttf": None,
    "cmb10.ttf": ASCII_LETTERS,
    "cmmi10.ttf": ASCII_LETTERS,
    "cmr10.ttf": ASCII_LETTERS,
    "cmss10.ttf": ASCII_LETTERS,
    "cmsy10.ttf": ASCII_UPPER,
    "cmti10.ttf": ASCII_LETTERS,
    "cmtt10.ttf": ASCII_LETTERS,
}
# Letters by category whose shape is that of a digit by design (tone marks, "two with stroke").
DIGIT_SHAPED = ("TWO", "FIVE", "SIX", "TRESILLO", "CUATRILLO")


# --- glyphs: every letter the fonts can draw, rendered once -------------------------------------


def letter_of(char: str) -> str | None:
    """The letter that `char` shows, or None if it is no letter of its own.

    Mathematical alphabets (bold, script, fraktur, ...) are further fonts of their letter. Letters
    with accents and the ligatures are left out: at 28 pixels they only blur their base letter.
    """
    if unicodedata.category(char) not in ("Lu", "Ll", "Lo"):
        return None
    if any(word in unicodedata.name(char, "").split() for word in DIGIT_SHAPED):
        return None
    decomposition = unicodedata.decomposition(char)
    if not decomposition:
        return char
    if decomposition.startswith("<font>"):
        return letter_of(chr(int(decomposition.split()[1], 16)))
    return None


def render(font: ImageFont.FreeTypeFont, char: str) -> np.ndarray | None:
    """`char` in white on black, scaled to fit the box and centred; None if the glyph is blank."""
    mask = font.getmask(char, mode="L")
    glyph = Image.frombytes("L", mask.size, bytes(mask)) if min(mask.size) > 0 else None
    bounds = glyph.getbbox() if glyph else None
    if glyph is None or bounds is None:
        return None
    glyph = glyph.crop(bounds)
    scale = BOX / max(glyph.size)
    width, height = (max(1, round(side * scale)) for side in glyph.size)
    canvas = Image.new("L", (CANVAS, CANVAS))
    glyph = glyph.resize((width, height), Image.Resampling.BOX)
    canvas.paste(glyph, ((CANVAS - width) // 2, (CANVAS - height) // 2))
    return np.asarray(canvas)


def merge_look_alikes(reference: dict[str, np.ndarray]) -> dict[str, int]:
    """A class for each letter, the same for letters that no reader could tell apart.

    Size is already normalised away, so c and C, or A of Latin, Greek and Cyrillic, look the same;
    asking to tell them apart would only add noise to the labels.
    """
    images = torch.from_numpy(np.stack(list(reference.values()))).float()
    coarse = F.normalize(F.avg_pool2d(images, 4).flatten(1))
    vectors = dict(zip(reference, coarse, strict=True))
    # two cases of a letter are one class already if they are much alike, say k and K
    stand_in = {letter: letter for letter in reference}
    for letter in reference:
        capital = letter.upper()
        if capital in vectors and 1 - vectors[letter] @ vectors[capital] < 0.2:
            stand_in[letter] = capital
    # letters of any alphabet must be nearly equal to share a class; complete linkage keeps chains
    # of small differences from merging unlike letters
    kept = sorted(set(stand_in.values()))
    tree = linkage(torch.stack([vectors[k] for k in kept]).numpy(), "complete", "cosine")
    cluster = dict(zip(kept, fcluster(tree, 0.09, "distance").tolist(), strict=True))
    return {letter: cluster[stand_in[letter]] - 1 for letter in reference}


def change_stroke(images: Tensor) -> Tensor:
    """(N, H, W) -> (N, 4, H, W): strokes thinner, as drawn, thicker and thicker still."""
    x = images.float().unsqueeze(1)
    thin = -F.max_pool2d(-x, 3, stride=1, padding=1)
    # hairlines vanish when thinned; such glyphs stay as they are
    keeps_shape = thin.sum((1, 2, 3)) > 0.4 * x.sum((1, 2, 3))
    thin = torch.where(keeps_shape[:, None, None, None], thin, x)
    thick = F.max_pool2d(x, 3, stride=1, padding=1)
    thicker = F.max_pool2d(thick, 3, stride=1, padding=1)
    return torch.cat([thin, x, thick, thicker], 1).to(torch.uint8)


@dataclass
class Glyphs:
    images: Tensor  # uint8 (N, 4, CANVAS, CANVAS), the second axis is the stroke width
    labels: Tensor  # int64 (N,)
    letters: int  # distinct letters before look-alikes were merged
    members: list[str]  # the letters of each class


def load_glyphs() -> Glyphs:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    drawn: list[tuple[str, np.ndarray]] = []
    for name, trusted in FONTS.items():
        charmap = sorted(FT2Font(str(folder / name)).get_charmap())
        font = ImageFont.truetype(
            str(folder / name), 2 * BOX, layout_engine=ImageFont.Layout.BASIC
        )
        for char in map(chr, charmap):
            letter = letter_of(char)
            if letter is None or (trusted is not None and char not in trusted):
                continue
            assert unicodedata.category(char)[0] == unicodedata.category(letter)[0] == "L"
            assert unicodedata.numeric(letter, None) is None
            image = render(font, char)
            if image is not None:
                drawn.append((letter, image))

    reference: dict[str, np.ndarray] = {}
    for letter, image in drawn:
        reference.setdefault(letter, image)
    class_of = merge_look_alikes(reference)
    members = [""] * (max(class_of.values()) + 1)
    for letter, label in class_of.items():
        members[label] += letter

    images = torch.from_numpy(np.stack([image for _, image in drawn]))
    strokes = torch.cat([change_stroke(part) for part in images.split(1024)])
    labels = torch.tensor([class_of[letter] for letter, _ in drawn])
    return Glyphs(strokes, labels, len(reference), members)


# --- augmentation: a batch at a time, all in torch ----------------------------------------------


def uniform(n: int, low: float, high: float) -> Tensor:
    return torch.empty(n).uniform_(low, high)


def warp_grid(fills: Tensor) -> Tensor:
    """Where each pixel of an output image looks in its canvas: affine plus smooth elastic.

    `fills` marks the images whose glyph is to fill them; the others get one of any size.
    """
    n = len(fills)
    angle = uniform(n, -0.30, 0.30)
    shear = uniform(n, -0.35, 0.35)
    tall = torch.where(fills, uniform(n, 24, 31), uniform(n, 16, 27))
    scale = tall / (BOX * SIZE / CANVAS)
    squeeze = torch.exp(uniform(n, -0.25, 0.25))
    cos, sin = torch.cos(angle), torch.sin(angle)
    rotate = torch.stack([cos, -sin, sin, cos], 1).view(n, 2, 2)
    stretch = torch.zeros(n, 2, 2)
    stretch[:, 0, 0] = squeeze / scale
    stretch[:, 0, 1] = shear
    stretch[:, 1, 1] = 1 / (squeeze * scale)
    # small glyphs have room to move about, large ones would leave the image
    shift = (torch.rand(n, 2, 1) - 0.5) * 0.24 * (1 / scale.view(n, 1, 1))
    grid = F.affine_grid(torch.cat([stretch @ rotate, shift], 2), [n, 1, SIZE, SIZE], False)
    nodes = torch.randn(n, 2, 5, 5) * uniform(n, 0.0, 0.09).view(n, 1, 1, 1)
    elastic = F.interpolate(nodes, size=(SIZE, SIZE), mode="bicubic", align_corners=True)
    return grid + elastic.permute(0, 2, 3, 1)


def low_resolution(x: Tensor) -> Tensor:
    """What is left of images after a camera of 8x8 pixels."""
    small = F.interpolate(x, size=(8, 8), mode="area")
    return F.interpolate(small, size=(SIZE, SIZE), mode="bilinear", align_corners=False)


def augment(canvases: Tensor) -> Tensor:
    """uint8 (n, 1, CANVAS, CANVAS) -> float (n, 1, SIZE, SIZE) in 0..1, all distorted."""
    n = len(canvases)
    # images of 8x8 pixels are read best, and made by others too, with the glyph filling them
    coarse = torch.rand(n) < 0.3
    x = F.grid_sample(canvases.float() / 255, warp_grid(coarse), align_corners=False)
    x[coarse] = low_resolution(x[coarse])
    blurred = F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=True)
    x = torch.lerp(x, blurred, uniform(n, 0.0, 0.8).clamp(min=0.3).view(n, 1, 1, 1) - 0.3)
    contrast = torch.exp(uniform(n, -0.3, 0.6)).view(n, 1, 1, 1)
    noise = uniform(n, -0.08, 0.08).clamp(min=0).view(n, 1, 1, 1)
    return (x * contrast + noise * torch.randn_like(x)).clamp(0, 1)


# --- training -----------------------------------------------------------------------------------


def make_model() -> ViTModel:
    config = ViTConfig(
        hidden_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=384,
        image_size=SIZE,
        patch_size=7,
        num_channels=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,  # 1 / sqrt(96); the usual 0.02 is meant for much wider networks
    )
    return ViTModel(config, add_pooling_layer=False)


def train(glyphs: Glyphs, steps: int, batch: int, peak_lr: float) -> ViTModel:
    model = make_model()
    head = nn.Linear(model.config.hidden_size, len(glyphs.members))
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim == 2], "weight_decay": 0.05},
            {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
        ],
        lr=peak_lr,
        betas=(0.9, 0.98),
    )
    warmup = max(1, steps // 20)

    def pace(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, pace)
    # between one vote per class and one per glyph: letters in many fonts are the better teachers
    weights = glyphs.labels.bincount().float()[glyphs.labels].rsqrt()
    model.train()
    started, loss_sum, correct = time.perf_counter(), 0.0, 0.0
    for step in range(1, steps + 1):
        chosen = torch.multinomial(weights, batch, replacement=True)
        stroke = torch.randint(glyphs.images.shape[1], (batch,))
        x = (augment(glyphs.images[chosen, stroke].unsqueeze(1)) - MEAN) / STD
        logits = head(model(pixel_values=x).last_hidden_state[:, 0])
        loss = F.cross_entropy(logits, glyphs.labels[chosen], label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        loss_sum += loss.item()
        correct += (logits.argmax(1) == glyphs.labels[chosen]).float().mean().item()
        if step % 100 == 0:
            seconds = time.perf_counter() - started
            print(
                f"step {step}/{steps}  loss {loss_sum / 100:.3f}  "
                f"letters right {correct / 100:.1%}  {seconds:.0f} s",
                flush=True,
            )
            loss_sum, correct = 0.0, 0.0
    return model.eval()


# --- probes -------------------------------------------------------------------------------------


@torch.no_grad()
def features(model: ViTModel, images: Tensor) -> np.ndarray:
    """uint8 (N, 1, H, W) -> the CLS token after the final layer norm, (N, hidden)."""
    out = []
    for part in images.split(500):
        x = part.float() / 255
        if x.shape[-1] != SIZE:
            x = F.interpolate(x, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
        out.append(model(pixel_values=(x - MEAN) / STD).last_hidden_state[:, 0])
    return torch.cat(out).numpy()


@dataclass
class Score:
    validation: float
    test: float


def probe(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> Score:
    """Logistic regression. A fifth of the training part chooses its C, then all of it is used."""

    def fit(c: float, inputs: np.ndarray, targets: np.ndarray) -> Any:
        classifier = LogisticRegression(C=c, max_iter=2000)
        return make_pipeline(StandardScaler(), classifier).fit(inputs, targets)

    x_fit, x_val, y_fit, y_val = train_test_split(
        x, y, test_size=0.2, stratify=y, random_state=1
    )
    scores = {c: fit(c, x_fit, y_fit).score(x_val, y_val) for c in (0.01, 0.1, 1.0)}
    best = max(scores, key=lambda c: scores[c])
    return Score(scores[best], fit(best, x, y).score(x_test, y_test))


def digits_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    bunch = load_digits()
    images = torch.from_numpy(np.round(bunch.images / 16 * 255).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(bunch.target)
    fit, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, stratify=bunch.target, random_state=0
    )
    return images[fit], labels[fit], images[test], labels[test]


def mnist_data() -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    try:
        from remembering.tasks.sources import load

        mnist = load("mnist")
    except (ImportError, OSError, RuntimeError) as error:
        print(f"MNIST is not to be had, so it is not probed: {error}")
        return None
    labels = mnist.train.labels
    fit = torch.cat([(labels == digit).nonzero().flatten()[:400] for digit in range(10)])
    return mnist.train.images[fit], labels[fit], mnist.test.images, mnist.test.labels


def run_probes(model: ViTModel) -> dict[str, dict[str, Score]]:
    model.eval()
    results: dict[str, dict[str, Score]] = {}
    for name, data in {"digits": digits_data(), "MNIST": mnist_data()}.items():
        if data is None:
            continue
        images, labels, test_images, test_labels = data
        y, y_test = labels.numpy(), test_labels.numpy()
        results[name] = {
            "glyph-vit": probe(features(model, images), y, features(model, test_images), y_test),
            "raw pixels": probe(
                images.flatten(1).numpy() / 255, y, test_images.flatten(1).numpy() / 255, y_test
            ),
        }
        for what, score in results[name].items():
            print(f"{name:>6}  {what:<10}  val {score.validation:.2%}  test {score.test:.2%}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--probe-only", action="store_true", help="no training, only the probes")
    parser.add_argument("--out", type=Path, default=ASSET)
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    if not args.probe_only:
        t = time.perf_counter()
        glyphs = load_glyphs()
        print(f"{glyphs.letters} letters, {len(glyphs.members)} classes, {len(glyphs.labels)} glyphs, {time.perf_counter()-t:.1f} s")
        started = time.perf_counter()
        model = train(glyphs, args.steps, args.batch, args.lr)
        minutes = (time.perf_counter() - started) / 60
        args.out.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(args.out)
    model = ViTModel.from_pretrained(args.out, add_pooling_layer=False)
    run_probes(model)


if __name__ == "__main__":
    main()
