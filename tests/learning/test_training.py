"""Training sets: what a step sees of an image."""

from __future__ import annotations

import pytest
import torch
from support import make_task

from remembering.backbones.backbone import Backbone
from remembering.config import Settings
from remembering.inference.token_cache import TokenCache
from remembering.learning import classes
from remembering.learning.training import RotatedTrainingSet, TrainingSet
from remembering.model import RememberingTransformer

pytestmark = pytest.mark.unit


def test_every_image_has_every_orientation_in_four_epochs() -> None:
    backbone, images = Backbone.load("bundled"), make_task(0).images
    cache = TokenCache(backbone, images, 0)
    targets, index = torch.arange(len(images)) % 2, torch.arange(len(images))
    rotated = RotatedTrainingSet(cache, targets, "task", 0)
    settings = Settings(augment="none")
    seen = []
    for epoch in range(4):
        outputs = rotated.outputs(index, settings, epoch)
        assert torch.equal(outputs // 4, targets)
        tokens = rotated.tokens(index, settings, epoch)
        for i in (0, 5):
            square = backbone.shrink(images[index[i : i + 1]])
            expected = cache.compute(torch.rot90(square, int(outputs[i]) % 4, (2, 3)))
            torch.testing.assert_close(tokens[i : i + 1], expected)
        seen.append(outputs % 4)
    assert (torch.stack(seen).sort(0).values == torch.arange(4)[:, None]).all()


@pytest.mark.parametrize(
    ("flips", "augment", "rotates"),
    [(True, None, True), (True, "crop", False), (False, None, False)],
)
def test_images_are_rotated_where_flips_preserve_labels(
    flips: bool, augment: str | None, rotates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[TrainingSet] = []

    def train(backbone, adapter, head, training_set, *arguments, **options):  # type: ignore[no-untyped-def]
        used.append(training_set)
        assert len(head.classes) == (8 if rotates else 2)
        return adapter, head

    monkeypatch.setattr(classes, "train", train)
    monkeypatch.setattr(classes, "flips_preserve_labels", lambda *_: flips)
    model = RememberingTransformer.from_backbone("bundled", epochs=1, augment=augment)
    model.learn(make_task(0))
    assert isinstance(used[0], RotatedTrainingSet) == rotates
