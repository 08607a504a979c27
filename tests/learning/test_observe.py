"""Streams without task boundaries, on the bundled backbone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from remembering.config import Settings
from remembering.data.sources import load
from remembering.data.streams.split import split
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.classify import adapter_outputs
from remembering.inference.predict import router_features
from remembering.learning import observe
from remembering.model import RememberingTransformer
from remembering.routing.symmetric import restore
from remembering.runtime.seeding import permutation

pytestmark = pytest.mark.integration

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
    return RememberingTransformer.from_backbone("bundled", epochs=4, lr=3e-3)


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
    model.flush()
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
    prediction = observed.observe(images[120:], labels[120:])
    assert prediction.recognised == {observed.tasks[1].name: 60}
    assert (prediction.learned, prediction.waiting) == ((), 0)
    assert len(observed.state.adapters) == 1, "all digits are of one domain"


def test_refining_adds_to_the_sums_as_if_it_had_been_there(
    digits: list[tuple[Tensor, list[int]]],
) -> None:
    """Those of the router and those of the classifier, in which flipped images count, too."""
    images, labels = digits[0]
    model = new_model()
    feed(model, images[:120], labels[:120])
    model.flush()
    before = model.state
    more, targets = images[120:], torch.tensor([before.tasks[0].classes.index(i) for i in labels])
    model.observe(more, labels[120:], refine=True)
    after, outputs = model.state, adapter_outputs(before, model.backbone, more, 0)
    views = [view for view in (outputs.plain, outputs.flipped) if view is not None]
    for old, new, seen in (
        (before.router, after.router, [router_features(before, model.backbone, more)]),
        (before.classifiers[0], after.classifiers[0], views),
    ):
        for label in (0, 1):
            own = targets[120:] == label
            added = sum(view[own].double().sum(0) for view in seen)
            sums = [part.experts[0]["sums"][label].double() for part in (old, new)]
            torch.testing.assert_close(sums[1], sums[0] + added, rtol=1e-5, atol=1e-4)
            counts = [part.experts[0]["counts"][label] for part in (old, new)]
            assert counts[1] - counts[0] == int(own.sum()) * len(seen)
        spread = [restore(part.shared).diagonal() for part in (old, new)]
        assert (spread[1] >= spread[0] * (1 - 1e-5)).all(), "more images, more scatter"
    assert after.tasks[0].images == 180


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
    model.flush()
    assert set(model.classes) == set(labels)
    assert accuracy(model, digits) > 0.9
    assert len(model.state.adapters) <= 4


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
    model.flush()
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
        model.flush()
    assert model.observe(images[rows], [labels[0]] * 10).waiting == 20


def test_one_class_after_another_makes_tasks(digits: list[tuple[Tensor, list[int]]]) -> None:
    model = new_model()
    for images, labels in digits[:2]:
        for label in dict.fromkeys(labels):
            rows = torch.tensor([i for i, other in enumerate(labels) if other == label])
            feed(model, images[rows], [label] * len(rows))
    model.flush()
    assert set(model.classes) == {label for _, part in digits[:2] for label in part}


def failing(error: type[BaseException]) -> Callable[..., None]:
    def fails(*arguments: object) -> None:
        raise error("no")

    return fails


@pytest.mark.parametrize("error", [KeyboardInterrupt, RememberingError])
def test_what_fails_to_be_learned_still_waits(
    error: type[BaseException],
    digits: list[tuple[Tensor, list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images, labels = digits[0]
    model = new_model()
    model.observe(images[:40], labels[:40])

    with monkeypatch.context() as patch:
        patch.setattr(observe, "learn", failing(error))
        with pytest.raises(error):
            model.flush()
    assert len(model.flush()) == 1


def test_what_cannot_be_learned_at_all_can_be_let_go(
    digits: list[tuple[Tensor, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = digits[0]
    model = new_model()
    model.observe(images[:40], labels[:40])

    monkeypatch.setattr(observe, "learn", failing(RememberingError))
    assert model.flush(discard=True) == ()
    assert model.observe(images[:2], labels[:2]).waiting == 2


def test_labels_of_another_kind_are_refused(digits: list[tuple[Tensor, list[int]]]) -> None:
    images, labels = digits[0]
    model = new_model()
    model.observe(images[:20], labels[:20])
    for _ in range(2):  # while they wait, and when they are learned
        with pytest.raises(RememberingError, match="str labels, but earlier ones are int"):
            model.observe(images[:20], [str(label) for label in labels[:20]])
        model.flush()


def test_a_rare_label_waits_without_harm_and_can_be_let_go(
    digits: list[tuple[Tensor, list[int]]], tmp_path: Path
) -> None:
    model = new_model()
    (first, labels), (second, others), (third, _) = digits
    model.observe(torch.cat([first[:40], third[:1]]), [*labels[:40], 99])
    model.observe(first[40:80], labels[40:80])
    feed(model, second, others)  # another draft, that comes to have as many batches
    with pytest.raises(RememberingError, match="one image"):
        model.flush()
    with pytest.raises(RememberingError, match="discard=True"):
        model.save(tmp_path / "model")
    model.flush(discard=True)
    assert set(model.classes) == {*labels, *others}
    model.save(tmp_path / "model")


def test_labels_of_a_forgotten_task_are_new_again(digits: list[tuple[Tensor, list[int]]]) -> None:
    """Also if another task keeps the adapter that knew them."""
    model = new_model()
    for name, (images, labels) in zip("ab", digits[:2], strict=True):
        model.learn(Task(name, images[:40], labels[:40]))
    model.forget("a")
    images, labels = digits[0]
    assert model.observe(images[:4], labels[:4]).waiting == 4


def test_refining_what_cannot_be_refined_is_refused_at_once(
    digits: list[tuple[Tensor, list[int]]],
) -> None:
    model = RememberingTransformer.from_backbone("bundled", Settings.paper())
    images, labels = digits[0]
    with pytest.raises(RememberingError, match="cannot be refined"):
        model.observe(images[:20], labels[:20], refine=True)
    assert model.observe(images[:20], labels[:20]).waiting == 20


def test_a_batch_that_fails_is_not_counted(
    digits: list[tuple[Tensor, list[int]]], tmp_path: Path
) -> None:
    """Refining again, after a damaged file was replaced, counts every image once."""
    images, labels = digits[0]
    model = new_model()
    feed(model, images[:120], labels[:120])
    model.flush()
    paths = [tmp_path / f"{i}.png" for i in range(40)]
    for path, image in zip(paths, images[120:160], strict=True):
        Image.fromarray(image[0].numpy()).save(path)
    good = paths[-1].read_bytes()
    paths[-1].write_bytes(good[:40])
    before = model.state
    with pytest.raises(RememberingError, match=r"39\.png"):
        model.observe(paths, labels[120:160], refine=True)
    assert model.state is before
    paths[-1].write_bytes(good)
    counts = before.router.experts[0]["counts"].sum()
    model.observe(paths, labels[120:160], refine=True)
    assert model.state.router.experts[0]["counts"].sum() == counts + 40
