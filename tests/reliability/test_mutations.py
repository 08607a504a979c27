"""Mutated files: an error in one sentence, or a result; and nothing is written."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from support import FAST, learned, make_task, sized

from remembering.backbones.backbone import Backbone
from remembering.data.decoding import read_image
from remembering.errors import RememberingError
from remembering.model import RememberingTransformer
from remembering.storage.verify import verify

pytestmark = pytest.mark.reliability
MANY = sized(1, 3, 10)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return bytes of which some are changed, removed, repeated or inserted."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(result) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(result):
            result[at] = rng.randrange(256)
        elif kind == 1:
            del result[at : at + rng.randint(1, 50)]
        elif kind == 2:
            result[at:at] = rng.randbytes(rng.randint(1, 20))
        else:
            result[at:at] = result[at : at + 30]
    return bytes(result)


def test_mutated_images_do_no_harm(tmp_path: Path) -> None:
    rng = random.Random(0)
    originals = []
    for suffix in ("png", "jpg", "gif", "bmp", "tiff", "webp"):
        path = tmp_path / f"original.{suffix}"
        Image.effect_noise((24, 16), 60).convert("RGB").save(path)
        originals.append((suffix, path.read_bytes()))
    read, count = 0, 3000 * MANY
    for i in range(count):
        suffix, data = originals[i % len(originals)]
        path = tmp_path / f"mutated.{suffix}"
        path.write_bytes(mutated(data, rng))
        try:
            image = read_image(path)
            read += 1
            assert image.dtype == torch.uint8
        except RememberingError as error:
            assert path.name in str(error)  # noqa: PT017
    assert 0.03 < read / count < 0.97, "some are still images, some are not"


def test_mutated_model_folders_are_refused_or_answer(backbone: Backbone, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    learned(backbone, 2, capacity=2, memory=4).save(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    rng = random.Random(0)
    refused, count = 0, 1000 * MANY
    for i in range(count):
        path = files[i % len(files)] if i % 2 else folder / "manifest.json"
        data = path.read_bytes()
        path.write_bytes(mutated(data, rng))
        before = {p: p.read_bytes() for p in files}
        try:
            RememberingTransformer.load(folder, backbone=backbone)
        except RememberingError as error:
            refused += 1
            assert "\n" not in str(error)  # noqa: PT017
        assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
        path.write_bytes(data)
    assert refused > 0.7 * count
    assert verify(folder) == []


def test_a_manifest_of_another_model_is_noticed(backbone: Backbone, tmp_path: Path) -> None:
    learned(backbone, 2).save(tmp_path / "one")
    learned(backbone, 2, seed=1).save(tmp_path / "two")
    shutil.copy(tmp_path / "two" / "manifest.json", tmp_path / "one" / "manifest.json")
    with pytest.raises(RememberingError, match="cannot be read"):
        RememberingTransformer.load(tmp_path / "one")


def test_labels_and_names_never_become_paths(backbone: Backbone, tmp_path: Path) -> None:
    model = RememberingTransformer.from_backbone(backbone, **FAST)
    task = make_task(0, ("../../../etc/passwd", "a/b\0c\n"))
    object.__setattr__(task, "name", "../../escape")
    model.learn(task)
    model.save(tmp_path / "model")
    names = {path.name for path in tmp_path.rglob("*")}
    assert not any("escape" in name or "passwd" in name for name in names)
    again = RememberingTransformer.load(tmp_path / "model")
    assert again.classes == model.classes
    assert again.tasks == model.tasks
