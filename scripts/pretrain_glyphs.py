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

ASSET = Path(__file__).resolve().parents[1] / "src" / "remembering" / "backbones" / "bundled"

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
# Alphabets to read. The fonts hold more, above all variants of Latin and of syllabics that differ
# in dots and hooks. With those, 1,120 classes, a trial of 600 steps gave the worse probes.
ALPHABETS = {
    "Latin": (0x0041, 0x017F),
    "Greek": (0x0370, 0x03FF),
    "Cyrillic": (0x0400, 0x045F),
    "Armenian": (0x0531, 0x0588),
    "Hebrew": (0x05D0, 0x05F2),
    "Arabic": (0x0620, 0x064A),
    "N'Ko": (0x07C0, 0x07FF),
    "Lao": (0x0E80, 0x0EFF),
    "Georgian": (0x10A0, 0x10FF),
    "Tifinagh": (0x2D30, 0x2D7F),
}


# --- glyphs: every letter the fonts can draw, rendered once -------------------------------------


def letter_of(char: str) -> str | None:
    """The letter that `char` shows, or None if it is no letter of its own.

    Mathematical alphabets (bold, script, fraktur, ...) are further fonts of their letter. Letters
    with accents and the ligatures are left out: at 28 pixels they only blur their base letter.
    """
    if unicodedata.category(char) not in ("Lu", "Ll", "Lo"):
        return None
    decomposition = unicodedata.decomposition(char)
    if not decomposition and any(a <= ord(char) <= b for a, b in ALPHABETS.values()):
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
    letters: int  # before look-alikes were merged
    classes: int  # thereafter


def load_glyphs() -> Glyphs:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    drawn: list[tuple[str, np.ndarray]] = []
    for name, trusted in FONTS.items():
        charmap = sorted(FT2Font(str(folder / name)).get_charmap())
        font = ImageFont.truetype(str(folder / name), 2 * BOX, layout_engine=ImageFont.Layout.BASIC)
        for char in map(chr, charmap):
            letter = letter_of(char)
            if letter is None or (trusted is not None and char not in trusted):
                continue
            assert unicodedata.category(char)[0] == unicodedata.category(letter)[0] == "L"
            assert unicodedata.numeric(char, None) is unicodedata.numeric(letter, None) is None
            image = render(font, char)
            if image is not None:
                drawn.append((letter, image))

    reference: dict[str, np.ndarray] = {}
    for letter, image in drawn:
        reference.setdefault(letter, image)
    class_of = merge_look_alikes(reference)
    # all stroke widths are kept ready: changing them for each batch would cost more than the warp
    images = torch.from_numpy(np.stack([image for _, image in drawn]))
    strokes = torch.cat([change_stroke(part) for part in images.split(1024)])
    labels = torch.tensor([class_of[letter] for letter, _ in drawn])
    return Glyphs(strokes, labels, len(reference), max(class_of.values()) + 1)


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
    # pictures of 8x8 pixels can only be read, and are only made, with the glyph filling them
    coarse = torch.rand(n) < 0.3
    x = F.grid_sample(canvases.float() / 255, warp_grid(coarse), align_corners=False)
    x[coarse] = low_resolution(x[coarse])
    blurred = F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=True)
    # some stay sharp, the others move up to half way to the mean of nine pixels
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
        initializer_range=0.1,  # 1 / sqrt(96); the default of 0.02 suits much wider networks
    )
    return ViTModel(config, add_pooling_layer=False)


class Muon(torch.optim.Optimizer):
    """Momentum whose update of each weight matrix is made orthogonal (Jordan et al., 2024).

    In a trial of 300 steps it came to a loss of 4.8 where AdamW came to 5.5. torch.optim.Muon
    works in bfloat16, one matrix at a time, which many CPUs do slowly; this one works in float32
    on all matrices of a shape at once.
    """

    def __init__(self, matrices: list[nn.Parameter], lr: float, decay: float, momentum: float):
        shapes: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for matrix in matrices:
            shapes.setdefault(tuple(matrix.shape), []).append(matrix)
        groups = [{"params": params} for params in shapes.values()]
        super().__init__(groups, {"lr": lr, "decay": decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params, momentum = group["params"], group["momentum"]
            updates = []
            for p in params:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - momentum)
                updates.append(p.grad.lerp(average, momentum))
            rows, columns = params[0].shape
            x = torch.stack(updates)
            x = orthogonalise(x) if rows <= columns else orthogonalise(x.mT).mT
            size = 0.2 * max(rows, columns) ** 0.5  # entries about as large as AdamW's updates
            for p, update in zip(params, x, strict=True):
                p.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-group["lr"] * size)


def orthogonalise(x: Tensor) -> Tensor:
    """Bring the singular values of wide matrices near 1 (Newton-Schulz, five iterations)."""
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def train(glyphs: Glyphs, steps: int, batch: int) -> ViTModel:
    model = make_model()
    head = nn.Linear(model.config.hidden_size, glyphs.classes)
    inner = [p for name, p in model.named_parameters() if "layer" in name and p.ndim == 2]
    outer = [p for p in model.parameters() if all(p is not q for q in inner)]
    optimizers = [
        Muon(inner, lr=4e-3, decay=0.05, momentum=0.95),
        torch.optim.AdamW([*outer, *head.parameters()], lr=2e-3, betas=(0.9, 0.98)),
    ]

    def pace(step: int) -> float:
        warmup = min(100, steps // 10)
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))

    schedules = [torch.optim.lr_scheduler.LambdaLR(o, pace) for o in optimizers]
    # between one vote per class and one per glyph: letters in many fonts teach the most
    weights = glyphs.labels.bincount().float()[glyphs.labels].rsqrt()
    model.train()
    started, losses, right = time.perf_counter(), 0.0, 0.0
    for step in range(1, steps + 1):
        chosen = torch.multinomial(weights, batch, replacement=True)
        stroke = torch.randint(glyphs.images.shape[1], (batch,))
        x = augment(glyphs.images[chosen, stroke].unsqueeze(1))
        logits = head(model(pixel_values=(x - MEAN) / STD).last_hidden_state[:, 0])
        loss = F.cross_entropy(logits, glyphs.labels[chosen], label_smoothing=0.1)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        losses += loss.item()
        right += (logits.argmax(1) == glyphs.labels[chosen]).float().mean().item()
        if step % 100 == 0:
            print(
                f"step {step}/{steps}  loss {losses / 100:.3f}  letters right {right / 100:.1%}  "
                f"{time.perf_counter() - started:.0f} s",
                flush=True,
            )
            losses, right = 0.0, 0.0
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
            x = (x * 255).round() / 255  # image processors resize in 8 bits
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

    x_fit, x_val, y_fit, y_val = train_test_split(x, y, test_size=0.2, stratify=y, random_state=1)
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
    from remembering.data.sources import load
    from remembering.errors import RememberingError

    try:
        mnist = load("mnist")
    except RememberingError as error:
        print(f"MNIST cannot be had and is not probed: {error}")
        return None
    images, test_images, labels = mnist.train.images, mnist.test.images, mnist.train.labels
    assert isinstance(images, Tensor)
    assert isinstance(test_images, Tensor)
    fit = torch.cat([(labels == digit).nonzero().flatten()[:400] for digit in range(10)])
    return images[fit], labels[fit], test_images, mnist.test.labels


def run_probes(model: ViTModel) -> dict[str, dict[str, Score]]:
    results: dict[str, dict[str, Score]] = {}
    for name, data in {"digits": digits_data(), "MNIST": mnist_data()}.items():
        if data is None:
            continue
        images, labels, test_images, test_labels = data
        y, y_test = labels.numpy(), test_labels.numpy()
        raw, raw_test = (part.flatten(1).numpy() / 255 for part in (images, test_images))
        results[name] = {
            "glyph-vit": probe(features(model, images), y, features(model, test_images), y_test),
            "raw pixels": probe(raw, y, raw_test, y_test),
        }
        for what, score in results[name].items():
            print(f"{name:>6}  {what:<10}  val {score.validation:.1%}  test {score.test:.1%}")
    return results


# --- the folder: what the hub expects of a model ------------------------------------------------

PREPROCESSOR = {
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [MEAN],
    "image_processor_type": "ViTImageProcessor",
    "image_std": [STD],
    "resample": 2,  # bilinear
    "rescale_factor": 1 / 255,
    "size": {"height": SIZE, "width": SIZE},
}

CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: image-feature-extraction
---

# glyph-vit

A very small Vision Transformer for grey images of 28x28 pixels, pretrained to tell letters apart.
It has never seen a digit, and no photograph or handwriting either. It is the bundled backbone of
the `remembering` library: small enough to ship, good enough to learn digit tasks on a CPU.

{layers} layers, width {width}, {heads} heads, patches of {patch}x{patch},
{parameters:,} parameters in float32. There is no pooler: the feature is the CLS token after the
final layer norm. Input is white on black, 0..255, divided by 255 and normalised with mean 0.5 and
deviation 0.5, as `preprocessor_config.json` says.

    from transformers import ViTModel
    model = ViTModel.from_pretrained("path/to/glyph-vit", add_pooling_layer=False)

## How it was made

    {command}

Supervised classification of rendered letters; the linear head is dropped. {letters:,} letters of
these alphabets in {fonts} fonts make {glyphs:,} glyphs:
{alphabets}.
The mathematical letters (bold, script, fraktur, ...) count as further fonts. Letters of much the
same shape, such as c and C or the A of Latin, Greek and Cyrillic, share a class, which leaves
{classes:,} classes. Every batch is distorted anew: rotation, shear, size, shift, elastic bending,
stroke width, contrast, blur, noise, and for three images in ten a passage through 8x8 pixels.

{steps:,} steps of {batch} images, Muon for the weight matrices and AdamW for the rest, label
smoothing 0.1, seed {seed}: {minutes:.0f} minutes on {threads} CPU threads (torch {torch}). The
same seed, machine and number of threads give the same weights.

## Data

The only data are the fonts that ship with matplotlib (here {matplotlib}): DejaVu (Bitstream Vera
and Arev licences, changes in the public domain), STIX (STIX Font License) and Computer Modern
(BaKoMa Fonts Licence). The fonts are not part of this folder.

Characters are chosen by Unicode category: letters only, digits of no script. Some letters look
like digits all the same, such as O, I, S, Z and the Cyrillic З.

## Linear probes

<!-- probes -->
<!-- /probes -->

Logistic regression on the standardised CLS token, and on the standardised pixels beside it. A
fifth of the training part chooses C from 0.01, 0.1 and 1 (column "validation"), then all of it is
fitted. The choices made for the training were made on training images too, never on the test part.

- digits: scikit-learn's 1,797 images of 8x8 pixels, enlarged to 28x28; a stratified split with
  seed 0 leaves 1,437 to train and 360 to test.
- MNIST: the first 400 training images of each class, and all 10,000 test images.

## Intended use and limits

For experiments and tests with small grey images of single characters: a frozen backbone under
adapters and heads. It is no use for photographs or colour, knows only upright characters
(rotations up to about 17 degrees), and has not been tried on anything but the probes above and
the experiments of this library.

## Licence

Apache-2.0.
"""


def write_card(folder: Path, model: ViTModel, facts: dict[str, Any]) -> None:
    config = model.config
    card = CARD.format(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        patch=config.patch_size,
        parameters=sum(p.numel() for p in model.parameters()),
        alphabets=", ".join(ALPHABETS),
        fonts=len(FONTS),
        torch=torch.__version__,
        matplotlib=matplotlib.__version__,
        **facts,
    )
    (folder / "README.md").write_text(card)


def write_probes(folder: Path, results: dict[str, dict[str, Score]]) -> None:
    """Put the numbers where the card has its place for them."""
    rows = ["| data | features | validation | test |", "|---|---|---:|---:|"]
    for name, scores in results.items():
        for what, score in scores.items():
            rows.append(f"| {name} | {what} | {score.validation:.1%} | {score.test:.1%} |")
    card = folder / "README.md"
    before, _, rest = card.read_text().partition("<!-- probes -->")
    _, _, after = rest.partition("<!-- /probes -->")
    table = "\n".join(rows)
    card.write_text(f"{before}<!-- probes -->\n{table}\n<!-- /probes -->{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Pretrain the bundled backbone on letters.")
    parser.add_argument("--probe-only", action="store_true", help="measure the saved weights again")
    parser.add_argument("--out", type=Path, default=ASSET, help="the folder to write")
    parser.add_argument("--steps", type=int, default=5500)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)

    if not args.probe_only:
        torch.manual_seed(args.seed)
        glyphs = load_glyphs()
        counts = {
            "letters": glyphs.letters,
            "classes": glyphs.classes,
            "glyphs": len(glyphs.labels),
        }
        print(", ".join(f"{count:,} {what}" for what, count in counts.items()), flush=True)
        started = time.perf_counter()
        trained = train(glyphs, args.steps, args.batch)
        facts = {
            "steps": args.steps,
            "batch": args.batch,
            "seed": args.seed,
            "threads": args.threads,
            "minutes": (time.perf_counter() - started) / 60,
            "command": f"python scripts/pretrain_glyphs.py --steps {args.steps} "
            f"--batch {args.batch} --seed {args.seed} --threads {args.threads}",
        }
        args.out.mkdir(parents=True, exist_ok=True)
        trained.save_pretrained(args.out)
        preprocessor = json.dumps(PREPROCESSOR, indent=2) + "\n"
        (args.out / "preprocessor_config.json").write_text(preprocessor)
        write_card(args.out, trained, facts | counts)

    model = ViTModel.from_pretrained(args.out, add_pooling_layer=False).eval()
    write_probes(args.out, run_probes(model))


if __name__ == "__main__":
    main()
