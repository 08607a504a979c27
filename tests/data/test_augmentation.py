"""Augmentation preserves the content of images and is the same when training is repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import FAST, DiedError, Dying, make_task, tensors
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.augmentation import augmented
from remembering.data.images import ImageBatch
from remembering.data.task import Task
from remembering.inference.token_cache import TokenCache
from remembering.learning.checkpoint import Checkpoint
from remembering.model import RememberingTransformer

ALL = torch.arange(64)


def noise(count: int = 64) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, 16, 24), generator=rng).to(torch.uint8)


def changed(images: Any, kind: Any, index: Tensor = ALL, **other: int) -> Any:
    return augmented(images, kind, index, **{"seed": 0, "task": 0, "epoch": 0, **other})


def learned(backbone: Backbone, task: Task, **changes: Any) -> RememberingTransformer:
    model = RememberingTransformer.from_backbone(backbone, **{**FAST, **changes})
    model.learn(task)
    return model


def test_a_flip_mirrors_about_half_of_the_images() -> None:
    images = noise()
    same = [torch.equal(a, b) for a, b in zip(changed(images, "flip"), images, strict=True)]
    mirrored = [
        torch.equal(a, b) for a, b in zip(changed(images, "flip"), images.flip(3), strict=True)
    ]
    assert [not each for each in same] == mirrored
    assert 16 < sum(same) < 48


def test_a_crop_moves_by_up_to_an_eighth_and_reflects() -> None:
    images = noise()
    found = set()
    for before, after in zip(images, changed(images, "crop"), strict=True):
        padded = torch.nn.functional.pad(before[None].float(), (3, 3, 2, 2), "reflect")[0]
        places = [
            (mirror, y, x)
            for mirror in (False, True)
            for y in range(5)
            for x in range(7)
            for part in [padded[:, y : y + 16, x : x + 24]]
            if torch.equal(part.flip(2) if mirror else part, after.float())
        ]
        assert len(places) == 1
        found.update(places)
    assert {y for _, y, _ in found} == set(range(5))
    assert {x for _, _, x in found} == set(range(7))
    assert {mirror for mirror, _, _ in found} == {False, True}


def test_a_resized_crop_is_a_part_of_the_image_enlarged() -> None:
    """On a linear ramp the range that remains shows which part was cut out."""
    ramp = torch.linspace(0, 1, 33)[None, None, :].expand(1, 33, 33)
    images = ramp.repeat(200, 1, 1, 1)
    after = changed(images, "resized_crop", torch.arange(200))
    assert after.shape == images.shape
    covered = after.amax((1, 2, 3)) - after.amin((1, 2, 3))
    assert 0.2 < covered.min() < 0.4  # sides of 8 % of the area at the narrowest aspect: 0.24
    assert covered.max() > 0.95
    rising = (after[..., -1] > after[..., 0]).flatten(1).all(1)
    assert 60 < rising.sum() < 140  # the others are flipped


@pytest.mark.parametrize("kind", ["flip", "crop", "resized_crop"])
def test_depends_on_seed_task_epoch_and_position_alone(kind: str) -> None:
    images = noise()
    whole = changed(images, kind)
    some = torch.tensor([40, 3, 17])
    assert torch.equal(changed(images[some], kind, some), whole[some])
    as_list = changed(list(images), kind)
    assert isinstance(as_list, ImageBatch)
    assert torch.equal(torch.stack(list(as_list)), whole)
    for other in ({"seed": 1}, {"task": 1}, {"epoch": 1}):
        assert not torch.equal(changed(images, kind, **other), whole)
    assert not torch.equal(changed(images, kind, ALL + 64), whole)


def test_flipping_symmetric_images_changes_nothing_that_is_learned(backbone: Backbone) -> None:
    task = make_task(0, per_class=8)
    half = task.images[..., :8]
    symmetric = Task("symmetric", torch.cat([half, half.flip(3)], dim=3), task.labels)
    plain = tensors(learned(backbone, symmetric))
    flipped = tensors(learned(backbone, symmetric, augment="flip"))
    for key, value in plain.items():  # tokens are computed in other batches, hence not bit for bit
        torch.testing.assert_close(flipped[key], value, rtol=1e-3, atol=1e-5)
    other = tensors(learned(backbone, task, augment="flip"))
    assert not torch.allclose(other["a0"], tensors(learned(backbone, task))["a0"], atol=1e-4)


@pytest.mark.parametrize("first_layer", [0, 2])
def test_the_router_sees_plain_images_and_training_does_not(
    first_layer: int, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(0)
    plain = tensors(learned(backbone, task, first_layer=first_layer))
    monkeypatch.setattr(TokenCache, "filled", None)  # nothing is kept that no epoch would use
    one, two = (
        tensors(learned(backbone, task, first_layer=first_layer, augment="crop")) for _ in range(2)
    )
    assert all(torch.equal(one[key], two[key]) for key in one)
    same = {key for key in plain if torch.equal(plain[key], one[key])}
    assert same == {key for key in plain if key.startswith("router expert")}


@pytest.mark.parametrize("first_layer", [0, 2])
@pytest.mark.parametrize("saves", [0, 3])
def test_goes_on_with_the_same_bits(
    saves: int, first_layer: int, backbone: Backbone, tmp_path: Path
) -> None:
    task = make_task(0, per_class=10)
    settings = {**FAST, "augment": "crop", "first_layer": first_layer}
    whole, cut, again = (
        RememberingTransformer.from_backbone(backbone, **settings) for _ in range(3)
    )
    whole.learn(task)
    path = tmp_path / "progress.safetensors"
    path.with_suffix(".left").write_text(str(saves))
    with pytest.raises(DiedError):
        cut.learn(task, checkpoint=Dying(path, steps=1))
    again.learn(task, checkpoint=Checkpoint(path, steps=1))
    one, two = tensors(whole), tensors(again)
    assert all(torch.equal(one[key], two[key]) for key in one)
