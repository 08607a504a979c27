"""The most similar replay images: an image that is kept is its own nearest neighbor."""

from __future__ import annotations

import pytest
import torch
from support import make_task

from remembering.backbones.backbone import Backbone
from remembering.config import Settings
from remembering.errors import RememberingError
from remembering.model import RememberingTransformer

CONFIGURATIONS = {
    "default": Settings(epochs=1, memory=4),
    "heads, an adapter per task": Settings.paper(epochs=1, memory=4, capacity=2),
    "heads, one adapter": Settings.paper(epochs=1, memory=4, capacity=1),
}


def taught(backbone: Backbone, settings: Settings) -> RememberingTransformer:
    model = RememberingTransformer(backbone, settings)
    for number in range(2):
        model.learn(make_task(number, (f"a{number}", f"b{number}")))
    return model


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_kept_image_is_its_own_nearest_neighbor(name: str, backbone: Backbone) -> None:
    model = taught(backbone, CONFIGURATIONS[name])
    for task in model.tasks:
        memory = model.state.memories[task.number]
        prediction = model.predict(memory.images, neighbors=3)
        assert prediction.neighbors is not None
        for answer, near, image, label in zip(
            prediction, prediction.neighbors, memory.images, memory.labels, strict=True
        ):
            assert [n.distance for n in near] == sorted(n.distance for n in near)
            served = {t.name for t in model.state.served_by(answer.adapter)}
            assert {n.task for n in near} <= served
            if task.name in served:
                assert (near[0].label, near[0].task) == (label, task.name)
                assert near[0].distance == pytest.approx(0, abs=1e-2)
                assert torch.equal(near[0].image, image)


def test_explanations_say_what_they_show(backbone: Backbone) -> None:
    prediction = taught(backbone, CONFIGURATIONS["default"]).predict(
        make_task(1).images, neighbors=2
    )
    assert prediction.neighbors is not None
    first, second = prediction.neighbors[5]
    line = f"The most similar replay images show '{first.label}', '{second.label}'."
    assert line in prediction.explain(5)
    assert line in prediction[5:].explain(0)


def test_without_replay_images_there_are_none(backbone: Backbone) -> None:
    model = RememberingTransformer.from_backbone(backbone, epochs=1)
    model.learn(make_task(0))
    prediction = model.predict(make_task(0).images, neighbors=3)
    assert prediction.neighbors == [[]] * len(prediction)
    assert "similar" not in prediction.explain(0)
    assert model.predict(make_task(0).images).neighbors is None
    with pytest.raises(RememberingError, match="neighbors = -1 must be at least 0"):
        model.predict(make_task(0).images, neighbors=-1)
