"""Renaming changes names, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import learned, make_task

from remembering.backbones.backbone import Backbone
from remembering.errors import RememberingError
from remembering.learning.rename import rename_class, rename_task
from remembering.model import RememberingTransformer


@pytest.fixture(scope="module")
def model(backbone: Backbone) -> RememberingTransformer:
    return learned(backbone, 3)


@pytest.fixture(scope="module")
def fused(backbone: Backbone) -> RememberingTransformer:
    """All tasks share one adapter; tasks 0 and 1 share the labels a and b."""
    model = learned(backbone, 0, capacity=1, memory=8)
    model.learn(make_task(0, ("a", "b")))
    model.learn(make_task(1, ("a", "b")))
    model.learn(make_task(2, ("c", "d")))
    return model


def test_a_renamed_task_answers_under_its_new_name(model: RememberingTransformer) -> None:
    renamed = model.with_state(rename_task(model.state, "task 1", "pets"))
    images = make_task(1).images
    before, after = model.predict(images), renamed.predict(images)
    assert after.tasks == ["pets" if name == "task 1" else name for name in before.tasks]
    assert torch.equal(after.probabilities, before.probabilities)


def test_a_renamed_class_keeps_its_probabilities(model: RememberingTransformer) -> None:
    renamed = model.with_state(rename_class(model.state, "task 1", "a1", "zebra"))
    images = make_task(1).images
    before, after = model.predict(images), renamed.predict(images)
    assert after.classes == tuple("zebra" if name == "a1" else name for name in before.classes)
    assert torch.equal(after.probabilities, before.probabilities)
    assert model.state.task("task 1").classes == ("a1", "b1"), "the old state was changed"


def test_a_renamed_class_is_saved(model: RememberingTransformer, tmp_path: Path) -> None:
    renamed = model.with_state(rename_class(model.state, "task 0", "b0", "new"))
    renamed.save(tmp_path / "model")
    loaded = RememberingTransformer.load(tmp_path / "model", backbone=model.backbone.name)
    assert loaded.state.task("task 0").classes == ("a0", "new")
    assert loaded.classes == renamed.classes


def test_stored_replay_labels_are_renamed(fused: RememberingTransformer, tmp_path: Path) -> None:
    fused.with_state(fused.state).save(tmp_path / "model")
    stored = RememberingTransformer.load(tmp_path / "model")
    stored.with_state(rename_class(stored.state, "task 2", "c", "x")).save(tmp_path / "model")
    relearned = RememberingTransformer.load(tmp_path / "model")
    number = relearned.state.task("task 2").number
    assert set(relearned.state.memories[number].labels) == {"x", "d"}
    relearned.learn(make_task(3, ("e", "f")))  # replays the renamed task
    assert "x" in relearned.classes


def test_a_label_can_recur_in_another_adapter(model: RememberingTransformer) -> None:
    state = rename_class(model.state, "task 1", "a1", "a0")
    assert state.classes == ("a0", "b0", "b1", "a2", "b2")
    prediction = model.with_state(state).predict(make_task(1).images)
    assert torch.allclose(prediction.probabilities.sum(1), torch.ones(len(prediction)))


def test_problems_are_explained(
    model: RememberingTransformer, fused: RememberingTransformer
) -> None:
    for message, call in {
        "there is no task 'x'": lambda: rename_task(model.state, "x", "y"),
        "a task named 'task 0' already exists": lambda: rename_task(
            model.state, "task 1", "task 0"
        ),
        "has no class 'x'; its classes are 'a0', 'b0'": lambda: rename_class(
            model.state, "task 0", "x", "y"
        ),
        "already has a class 'b0'": lambda: rename_class(model.state, "task 0", "a0", "b0"),
        "of type str; 7 is a int": lambda: rename_class(model.state, "task 0", "a0", 7),
        "shares its output of adapter 2 with 'task 1'": lambda: rename_class(
            fused.state, "task 0", "a", "x"
        ),
    }.items():
        with pytest.raises(RememberingError, match=message):
            call()
