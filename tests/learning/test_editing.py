"""Everyday changes of a model: images, classes, names, other models, copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FAST, TWO_LEVEL, consolidated, learned, make_task, tensors

from remembering.backbones.backbone import Backbone
from remembering.config import RouterSettings
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.classify import Classified, answer
from remembering.model import RememberingTransformer

pytestmark = pytest.mark.integration

SHARED = {**TWO_LEVEL, "adapters": "first"}
IMAGES = torch.cat([torch.as_tensor(make_task(n, per_class=12).images) for n in range(3)])


def make_class(number: int, count: int = 12) -> torch.Tensor:
    """Images that are bright in the last rows, unlike those of `make_task`."""
    rng = torch.Generator().manual_seed(100 + number)
    images = torch.randint(0, 60, (count, 3, 16, 16), generator=rng)
    images[:, :, 4 * number : 4 * number + 4, 8:] += 190
    return images.to(torch.uint8)


@pytest.fixture(scope="module")
def learned_model(backbone: Backbone) -> RememberingTransformer:
    model = RememberingTransformer.from_backbone(backbone, **{**SHARED, "memory": 8})
    for number in range(3):
        model.learn(make_task(number, (f"a{number}", f"b{number}"), per_class=12))
    return model


@pytest.fixture
def model(learned_model: RememberingTransformer) -> RememberingTransformer:
    return learned_model.with_state(learned_model.state)


def assert_saved(model: RememberingTransformer, folder: Path) -> None:
    """The state is consistent and complete: what is loaded answers alike."""
    model.save(folder)
    loaded = RememberingTransformer.load(folder)
    assert loaded.tasks == model.tasks
    assert torch.equal(loaded.predict_proba(IMAGES), model.predict_proba(IMAGES))


def test_added_images_are_part_of_the_task(model: RememberingTransformer, tmp_path: Path) -> None:
    more = make_class(1)
    before = model.predict(more)
    model.add_images("task 1", more[:6], ["a1"] * 6)
    assert model.state.task("task 1").images == 24 + 6
    column = model.classes.index("a1")
    gained = model.predict(more[6:]).probabilities[:, column] - before.probabilities[6:, column]
    assert gained.mean() > 0
    assert_saved(model, tmp_path)


def test_an_added_class_is_recognised_and_forgotten(
    model: RememberingTransformer, tmp_path: Path
) -> None:
    before = model.with_state(model.state)
    known = model.predict(IMAGES).labels
    new = make_class(3, 24)
    model.add_class("task 1", "new", new[:12])
    assert model.state.task("task 1").classes == ("a1", "b1", "new")
    assert model.predict(new[12:]).labels.count("new") >= 11
    assert [a == b for a, b in zip(model.predict(IMAGES).labels, known, strict=True)].count(
        False
    ) <= 2
    domain = model.state.domains[0]
    assert (len(domain.references), int(domain.count)) == (7, 3 * 24 + 12)
    assert "new" in model.state.memories[1].labels
    assert_saved(model, tmp_path)
    model.forget("task 1")
    before.forget("task 1")
    for key, value in tensors(before).items():
        torch.testing.assert_close(
            tensors(model)[key].double(), value.double(), rtol=5e-3, atol=5e-3
        )


def test_a_removed_class_is_not_answered(model: RememberingTransformer, tmp_path: Path) -> None:
    before = model.with_state(model.state)
    model.remove_class("task 1", "a1")
    assert model.classes == ("a0", "b0", "b1", "a2", "b2")
    assert "a1" not in model.predict(IMAGES).labels
    assert model.state.task("task 1").images == 12
    assert set(model.state.memories[1].labels) == {"b1"}
    domain = model.state.domains[0]
    assert (len(domain.references), int(domain.count)) == (5, 60)
    assert_saved(model, tmp_path)
    model.forget("task 1")
    before.forget("task 1")
    assert model.state.router.shared["count"] == before.state.router.shared["count"]
    torch.testing.assert_close(
        model.state.router.shared["spread"], before.state.router.shared["spread"], rtol=1e-3, atol=0
    )


def test_removing_what_was_added_restores_the_task(model: RememberingTransformer) -> None:
    before = model.predict(IMAGES)
    model.add_class("task 2", "new", make_class(3))
    model.remove_class("task 2", "new")
    after = model.predict(IMAGES)
    assert after.labels == before.labels
    assert model.state.task("task 2").images == 24
    assert int(model.state.domains[0].count) == 72


def test_a_consolidated_adapter_can_be_edited(
    model: RememberingTransformer, backbone: Backbone, tmp_path: Path
) -> None:
    better = model.with_state(consolidated(model.state, backbone))
    better.add_images("task 0", make_class(0), ["a0"] * 12)
    better.add_class("task 1", "new", make_class(3))
    better.remove_class("task 2", "b2")
    assert better.predict(make_class(3)).labels.count("new") >= 11
    exact = better.state.references[0].classifier
    counts = [len(expert["counts"]) for expert in exact.experts.values()]
    assert counts == [2, 3, 1]
    assert_saved(better, tmp_path)
    consolidated(better.state, backbone)  # the kept images fit the classes


def test_a_class_of_a_gaussian_classifier_is_renamed(
    model: RememberingTransformer, tmp_path: Path
) -> None:
    before = model.predict(IMAGES)
    model.save(tmp_path / "first")
    stored = RememberingTransformer.load(tmp_path / "first")
    stored.rename_class("task 1", "a1", "zebra")
    stored.rename_task("task 1", "animals")
    after = stored.predict(IMAGES)
    assert after.labels == ["zebra" if label == "a1" else label for label in before.labels]
    assert "zebra" in stored.state.memories[1].labels
    assert_saved(stored, tmp_path / "second")
    stored.rename_class("animals", "zebra", "a0")
    assert stored.classes == ("a0", "b0", "b1", "a2", "b2"), "labels may recur between tasks"


def test_merging_keeps_the_answers_of_both(backbone: Backbone, tmp_path: Path) -> None:
    options = {**TWO_LEVEL, "adapters": "task", "memory": 4}
    ours, theirs = (RememberingTransformer.from_backbone(backbone, **options) for _ in range(2))
    ours.learn(make_task(0, ("a0", "b0"), per_class=12))
    ours.forget("task 0")
    for number, one in ((0, ours), (1, ours), (2, theirs)):
        one.learn(make_task(number, (f"a{number}", f"b{number}"), per_class=12))
    theirs.save(tmp_path / "theirs")
    theirs = RememberingTransformer.load(tmp_path / "theirs")
    whole = RememberingTransformer.from_backbone(backbone, **options)
    for number in range(3):
        whole.learn(make_task(number, (f"a{number}", f"b{number}"), per_class=12))
    ours.merge(theirs)
    assert [task.name for task in ours.tasks] == ["task 0", "task 1", "task 2"]
    assert ours.predict(IMAGES).labels == whole.predict(IMAGES).labels
    assert ours.state.router.shared["count"] == pytest.approx(
        float(whole.state.router.shared["count"]), abs=4
    )
    assert_saved(ours, tmp_path / "ours")
    ours.forget("task 2")
    ours.learn(make_task(3, ("a3", "b3"), per_class=12))


@pytest.mark.parametrize("options", [FAST, {**FAST, "capacity": 2, "memory": 4}], ids=str)
def test_models_with_heads_are_merged(backbone: Backbone, options: dict[str, object]) -> None:
    ours, theirs = (learned(backbone, 1, **options) for _ in range(2))
    theirs.rename_task("task 0", "other")
    theirs.rename_class("other", "a0", "c")
    ours.merge(theirs)
    assert ours.classes == ("a0", "b0", "c")
    assert len(ours.predict(IMAGES[:4])) == 4


def test_merging_explains_what_does_not_fit(backbone: Backbone) -> None:
    model = learned(backbone, 1)
    bundled = RememberingTransformer.from_backbone("bundled", **FAST)
    numbers = RememberingTransformer.from_backbone(backbone, **FAST)
    numbers.learn(Task("numbers", make_task(0).images, [1, 2] * 6))
    small, rest = (learned(backbone, 1, capacity=1, memory=2) for _ in range(2))
    rest.rename_task("task 0", "other")
    for ours, other, message in (
        (model, bundled, "different backbones"),
        (model, learned(backbone, 1, rank=2), "rank is 1 and 2"),
        (model, learned(backbone, 1), "both models have a task named 'task 0'"),
        (model, numbers, "int and str"),
        (small, rest, "2 adapters together, but the capacity is 1"),
    ):
        before = ours.state
        with pytest.raises(RememberingError, match=message):
            ours.merge(other)
        assert ours.state is before


def test_problems_are_explained(model: RememberingTransformer, backbone: Backbone) -> None:
    heads = learned(backbone, 1, router=RouterSettings())
    subspaces = learned(backbone, 1)
    images = make_class(0)
    calls: dict[str, Callable[[], None]] = {
        "no task 'x'": lambda: model.add_images("x", images, ["a0"] * 12),
        "no class 'x'; add it": lambda: model.add_images("task 0", images, ["x"] * 12),
        "already has a class 'a0'": lambda: model.add_class("task 0", "a0", images),
        "of type str; 7 is a int": lambda: model.add_class("task 0", 7, images),
        "needs at least two images": lambda: model.add_class("task 0", "x", images[:1]),
        "no class 'x'; its classes": lambda: model.remove_class("task 0", "x"),
        "head must be retrained": lambda: heads.remove_class("task 0", "a0"),
        "subspace router cannot be": lambda: subspaces.add_class("task 0", "x", images),
    }
    before = model.state
    for message, call in calls.items():
        with pytest.raises(RememberingError, match=message):
            call()
    assert model.state is before
    model.remove_class("task 0", "a0")
    with pytest.raises(RememberingError, match="only class of task 'task 0'; forget"):
        model.remove_class("task 0", "b0")


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    "options", [SHARED, {**SHARED, "memory": 4}, FAST], ids=["", "memory", "heads"]
)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_answer_alike_and_are_independent(
    backbone: Backbone,
    options: dict[str, object],
    copied: Callable[[RememberingTransformer], RememberingTransformer],
    stored: bool,
    tmp_path: Path,
) -> None:
    model = learned(backbone, 2, **options)
    if stored:
        model.save(tmp_path / "model")
        model = RememberingTransformer.load(tmp_path / "model", cache_bytes=0)
    model.predict(IMAGES)  # fills caches
    other = copied(model)
    a, b = model.predict(IMAGES, false_alarm_rate=0.1), other.predict(IMAGES, false_alarm_rate=0.1)
    assert (a.labels, a.tasks) == (b.labels, b.tasks)
    assert torch.equal(a.probabilities, b.probabilities)
    other.forget("task 1")
    assert len(model.tasks) == 2
    other.learn(make_task(2, ("x", "y")))
    other.save(tmp_path / "model")
    assert len(RememberingTransformer.load(tmp_path / "model").tasks) == 2


LABELS = st.lists(
    st.lists(st.sampled_from("abcd"), min_size=2, max_size=3, unique=True), min_size=2, max_size=4
)


@pytest.mark.parametrize(
    "options",
    [SHARED, {**TWO_LEVEL, "adapters": "task"}, {**FAST, "capacity": 1, "memory": 6}],
    ids=["one adapter", "adapters", "one head"],
)
@given(classes=LABELS, groups=st.booleans())
@settings(max_examples=6)
def test_label_and_task_agree(
    backbone: Backbone, options: dict[str, object], classes: list[list[str]], groups: bool
) -> None:
    """Labels recur between tasks; an answer names a task that has the label."""
    model = RememberingTransformer.from_backbone(backbone, **{**options, "epochs": 1})
    for number, labels in enumerate(classes):
        model.learn(make_task(number, tuple(labels)))
    noise = torch.randint(0, 256, (60, 3, 16, 16), dtype=torch.uint8)
    prediction = model.predict(
        torch.cat([noise, IMAGES]),
        groups=[i // 8 for i in range(60 + len(IMAGES))] if groups else None,
    )
    for label, name, adapter in zip(
        prediction.labels, prediction.tasks, prediction.adapters.tolist(), strict=True
    ):
        task = model.state.task(name)
        assert label in task.classes
        assert adapter == task.adapter


def test_a_head_does_not_answer_with_forgotten_labels(backbone: Backbone) -> None:
    model = learned(backbone, 2, capacity=1, memory=4)
    model.forget("task 1")
    assert model.classes == ("a0", "b0")
    assert {*model.predict(IMAGES).labels} <= {"a0", "b0"}


@pytest.fixture(scope="module")
def recurring(backbone: Backbone) -> RememberingTransformer:
    model = RememberingTransformer.from_backbone(backbone, **SHARED)
    for number, labels in enumerate([("a", "b"), ("b", "c"), ("a", "c")]):
        model.learn(make_task(number, labels))
    return model


@given(seed=st.integers(0, 2**31), scale=st.floats(0.01, 3), groups=st.booleans())
def test_label_and_task_agree_whatever_the_logits_are(
    recurring: RememberingTransformer, seed: int, scale: float, groups: bool
) -> None:
    state, rng = recurring.state, torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(40, 6, generator=rng, dtype=torch.float64)
    classified = Classified(logits, torch.zeros(40, dtype=torch.long))
    probabilities, tasks = answer(state, classified, torch.arange(40) // 5 if groups else None)
    for label, task in zip(probabilities.argmax(1).tolist(), tasks.tolist(), strict=True):
        assert state.classes[label] in state.tasks[task].classes
