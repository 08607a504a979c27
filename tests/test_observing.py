"""Streams without task boundaries, on the bundled backbone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from remembering.config import RouterSettings
from remembering.errors import RememberingError
from remembering.model import RememberingTransformer
from remembering.seeding import permutation
from remembering.tasks.sources import load
from remembering.tasks.split import split

BATCH = 40


@pytest.fixture(scope="module")
def digits() -> list[tuple[Tensor, list[int]]]:
    """Images and labels of three tasks of two digits: 120 to learn from, 60 to ask about."""
    stream = split(load("digits"), [2, 2, 2], seed=0)
    order = permutation(180, 0, "writers")  # the files come writer by writer
    return [
        (task.train.images[order], [task.train.labels[i] for i in order.tolist()])
        for task in stream.tasks
    ]


def new_model() -> RememberingTransformer:
    router = RouterSettings(eyes=0)
    return RememberingTransformer.from_backbone("bundled", epochs=4, lr=3e-3, router=router)


def feed(model: RememberingTransformer, images: Tensor, labels: list[int]) -> list[int]:
    """Batch after batch; how many tasks there are after each."""
    counts = []
    for rows in torch.arange(len(labels)).split(BATCH):
        model.observe(images[rows], [labels[i] for i in rows.tolist()])
        counts.append(len(model.tasks))
    return counts


def accuracy(model: RememberingTransformer, digits: list[tuple[Tensor, list[int]]]) -> float:
    asked = [(images[120:], labels[120:]) for images, labels in digits]
    right = [
        a == b
        for images, labels in asked
        for a, b in zip(model.predict(images).labels, labels, strict=True)
    ]
    return sum(right) / len(right)


@pytest.fixture(scope="module")
def observed(digits: list[tuple[Tensor, list[int]]]) -> RememberingTransformer:
    """The three tasks in a row, no boundaries given; then the first comes back."""
    model = new_model()
    for images, labels in digits:
        feed(model, images[:120], labels[:120])
    model.settle()
    return model


def test_tasks_are_found_where_they_begin(
    observed: RememberingTransformer, digits: list[tuple[Tensor, list[int]]]
) -> None:
    assert [set(record.classes) for record in observed.tasks] == [
        set(labels) for _, labels in digits
    ]
    assert accuracy(observed, digits) > 0.9


def test_a_recurring_task_is_recognised_and_gets_no_adapter(
    observed: RememberingTransformer, digits: list[tuple[Tensor, list[int]]]
) -> None:
    images, labels = digits[1]
    said = observed.observe(images[120:], labels[120:])
    assert said.recognised == {observed.tasks[1].name: 60}
    assert (said.learned, said.waiting) == ([], 0)
    assert len(observed.adapters) == 3


def test_refining_adds_to_the_sums_as_if_it_had_been_there(
    digits: list[tuple[Tensor, list[int]]],
) -> None:
    images, labels = digits[0]
    model = new_model()
    feed(model, images[:120], labels[:120])
    model.settle()
    targets = torch.tensor([model.tasks[0].classes.index(label) for label in labels])
    whole = model.router.fit(model.router_features(images), targets, torch.Generator())
    model.observe(images[120:], labels[120:], refine=True)
    torch.testing.assert_close(model.router.experts[0]["sums"], whole["sums"])
    torch.testing.assert_close(model.router.shared["scatter"], whole["scatter"])


def test_blurred_boundaries_cost_no_class(digits: list[tuple[Tensor, list[int]]]) -> None:
    """Around each boundary, two batches mix the task that ends with the one that begins."""
    images = torch.cat([part[:120] for part, _ in digits])
    labels = [label for _, part in digits for label in part[:120]]
    order = torch.arange(len(labels))
    for boundary in (120, 240):
        rows = slice(boundary - BATCH, boundary + BATCH)
        order[rows] = order[rows][permutation(2 * BATCH, 0, "blur", boundary)]
    model = new_model()
    feed(model, images[order], [labels[i] for i in order.tolist()])
    model.settle()
    assert set(model.classes) == set(labels)
    assert accuracy(model, digits) > 0.9
    assert len(model.adapters) <= 4


def test_the_same_labels_in_another_look_are_another_task(
    digits: list[tuple[Tensor, list[int]]],
) -> None:
    images, labels = digits[0]
    pixels = permutation(images.shape[2] * images.shape[3], 0, "pixels")
    mixed = images.flatten(2)[:, :, pixels].reshape(images.shape)
    model = new_model()
    feed(model, images[:120], labels[:120])
    feed(model, mixed[:120], labels[:120])
    feed(model, images[120:], labels[120:])
    model.settle()
    assert len(model.tasks) == 2


def test_what_waits_cannot_be_saved_and_wrong_batches_change_nothing(
    digits: list[tuple[Tensor, list[int]]], tmp_path: pytest.TempPathFactory
) -> None:
    images, labels = digits[0]
    model = new_model()
    assert model.observe(images[:20], labels[:20]).waiting == 20
    with pytest.raises(RememberingError, match="20 observed images wait"):
        model.save(str(tmp_path))
    with pytest.raises(RememberingError, match="labels"):
        model.observe(images[:3], labels[:2])
    assert model.observe(images[20:40], labels[20:40]).waiting == 40


def test_a_single_class_waits_for_company(digits: list[tuple[Tensor, list[int]]]) -> None:
    images, labels = digits[0]
    rows = torch.tensor([i for i, label in enumerate(labels) if label == labels[0]][:10])
    model = new_model()
    model.observe(images[rows], [labels[0]] * 10)
    with pytest.raises(RememberingError, match="cannot be learned yet"):
        model.settle()
    assert model.observe(images[rows], [labels[0]] * 10).waiting == 20
