"""One contract for every kind of stream, and what is particular to each."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from remembering.data.sources import LabelledImages, Source, load
from remembering.data.streams.permute import permute
from remembering.data.streams.sequence import sequence
from remembering.data.streams.split import split
from remembering.data.streams.stream import Stream, TaskData, hold_out, limit
from remembering.data.task import Task
from remembering.errors import RememberingError


def make_source(classes: int = 6, per_class: int = 8, name: str = "made") -> Source:
    """Every image is different, sorted by class as files in folders are."""

    def part(first: int) -> LabelledImages:
        labels = torch.arange(classes).repeat_interleave(per_class)
        pixels = torch.arange(len(labels)) + first
        images = pixels[:, None, None, None] + torch.arange(12).reshape(1, 1, 3, 4)
        return LabelledImages(images.remainder(256).to(torch.uint8), labels)

    return Source(name, part(0), part(120), tuple(f"class {i:02}" for i in range(classes)))


BUILDERS: dict[str, Callable[[int], Stream]] = {
    "split": lambda seed: split(make_source(), 3, seed),
    "unequal split": lambda seed: split(make_source(), [3, 2], seed),
    "permute": lambda seed: permute(make_source(), 3, seed),
    "sequence": lambda seed: sequence([make_source(), make_source(4, name="other")], seed),
    "limited": lambda seed: split(limit(make_source(), 6, 5, seed), 3, seed),
}
every_stream = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)


def pixels(task: Task) -> Tensor:
    decoded = task.images[torch.arange(len(task))]
    return decoded if isinstance(decoded, Tensor) else torch.stack(decoded)


def same(one: Stream, other: Stream) -> bool:
    return one.name == other.name and all(
        a.name == b.name and a.labels == b.labels and torch.equal(pixels(a), pixels(b))
        for x, y in zip(one.tasks, other.tasks, strict=True)
        for a, b in ((x.train, y.train), (x.test, y.test))
    )


@every_stream
def test_train_and_test_have_the_same_name_and_classes(build: Callable[[int], Stream]) -> None:
    for task in build(0).tasks:
        assert task.train.name == task.test.name
        assert task.train.classes == task.test.classes


@every_stream
def test_every_task_can_be_learned_and_has_its_own_name(build: Callable[[int], Stream]) -> None:
    stream = build(0)
    for task in stream.tasks:
        task.train.check_learnable()
    assert len({task.train.name for task in stream.tasks}) == len(stream.tasks)


@every_stream
def test_the_seed_alone_decides(build: Callable[[int], Stream]) -> None:
    assert same(build(3), build(3))
    assert not same(build(3), build(4))


@every_stream
def test_images_keep_their_labels(build: Callable[[int], Stream]) -> None:
    # The sum of an image does not change when its pixels move, and tells which image it was.
    source = make_source()
    for part, known in (("train", source.train), ("test", source.test)):
        labels = dict(zip(sums(known.images), known.labels.tolist(), strict=True))
        for task in build(1).tasks:
            if task.train.name == "other":
                continue
            data: Task = getattr(task, part)
            expected = [source.classes[labels[total]] for total in sums(pixels(data))]
            assert list(data.labels) == expected


def sums(images: object) -> list[int]:
    totals: list[int] = torch.as_tensor(images).long().flatten(1).sum(1).tolist()
    return totals


@every_stream
def test_consecutive_test_images_mix_classes(build: Callable[[int], Stream]) -> None:
    for task in build(0).tasks:
        assert task.test.labels != tuple(sorted(task.test.labels))


@every_stream
def test_a_negative_seed_is_refused(build: Callable[[int], Stream]) -> None:
    with pytest.raises(RememberingError, match="seed = -1"):
        build(-1)


@given(st.integers(2, 30), st.integers(1, 15), st.integers(0, 2**40))
def test_split_into_a_number_of_tasks(classes: int, tasks: int, seed: int) -> None:
    source = make_source(classes, per_class=2)
    if tasks > classes // 2:
        with pytest.raises(RememberingError, match=f"1 to {classes // 2}"):
            split(source, tasks, seed)
        return
    groups = [task.train.classes for task in split(source, tasks, seed).tasks]
    sizes = [len(group) for group in groups]
    assert sorted(label for group in groups for label in group) == list(source.classes)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(st.lists(st.integers(0, 6), max_size=6), st.integers(0, 9))
def test_split_by_sizes(sizes: list[int], seed: int) -> None:
    source = make_source(12, per_class=2)
    if not sizes or min(sizes) < 2 or sum(sizes) > 12:
        with pytest.raises(RememberingError, match=r"at least two|use fewer"):
            split(source, sizes, seed)
        return
    groups = [task.train.classes for task in split(source, sizes, seed).tasks]
    assert [len(group) for group in groups] == sizes
    assert len({label for group in groups for label in group}) == sum(sizes)


def test_seed_zero_shuffles_the_classes_too() -> None:
    assert split(make_source(20), 2, 0).tasks[0].train.classes != make_source(20).classes[:10]


def test_split_names_are_short() -> None:
    names = [task.train.name for task in split(make_source(12), [2, 10], 0).tasks]
    assert names[0].count("class") == 2
    assert names[1].count("class") == 3
    assert names[1].endswith(" ... +7")


def test_names_that_would_be_the_same_are_numbered() -> None:
    stream = sequence([make_source(), make_source(), make_source()], 0)
    assert [task.train.name for task in stream.tasks] == ["made", "made (2)", "made (3)"]


def test_permutations_differ_between_tasks_and_agree_within_one() -> None:
    source = make_source()
    stream = permute(source, 3, 0)
    assert [task.train.name for task in stream.tasks] == [f"permutation {i}" for i in (1, 2, 3)]
    orders = [task.train.images.pixels for task in stream.tasks]
    assert len({tuple(order.tolist()) for order in orders}) == 3
    for task, order in zip(stream.tasks, orders, strict=True):
        assert torch.equal(task.test.images.pixels, order)
        expected = torch.as_tensor(source.train.images).flatten(2)[:, :, order].reshape(-1, 1, 3, 4)
        assert torch.equal(pixels(task.train), expected)


def test_permuted_tasks_share_the_pixels_of_the_source() -> None:
    source = make_source()
    for task in permute(source, 5, 0).tasks:
        assert task.train.images.images is source.train.images
        assert task.test.images.images is source.test.images


def test_images_in_files_cannot_be_permuted(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for i in range(3):
            Image.new("L", (4, 4)).save(tmp_path / label / f"{i}.png")
    with pytest.raises(RememberingError, match="may differ in size"):
        permute(load(str(tmp_path)), 2, 0)


def test_permutations_are_counted_from_one() -> None:
    with pytest.raises(RememberingError, match="1 or more"):
        permute(make_source(), 0, 0)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_smaller_limit_is_a_part_of_a_larger_one(seed: int) -> None:
    small, large = (limit(make_source(per_class=20), n, n, seed) for n in (3, 10))
    for part in ("train", "test"):
        few, many = getattr(small, part), getattr(large, part)
        assert torch.bincount(few.labels).tolist() == [3] * 6
        assert torch.bincount(many.labels).tolist() == [10] * 6
        assert set(sums(few.images)) < set(sums(many.images))


def test_limits_that_cut_nothing_change_nothing() -> None:
    source = make_source()
    for limited in (limit(source, None, None, 0), limit(source, 99, 99, 0)):
        assert torch.equal(torch.as_tensor(limited.train.images), source.train.images)
        assert torch.equal(limited.test.labels, source.test.labels)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(RememberingError, match="limit of test images per class is 0"):
        limit(make_source(), 2, 0, 0)


def test_one_image_per_class_is_not_enough_to_learn_from() -> None:
    with pytest.raises(RememberingError, match="has one image"):
        split(limit(make_source(), 1, 1, 0), 3, 0)


def test_a_stream_refuses_no_tasks_and_names_given_twice() -> None:
    task = split(make_source(), 3, 0).tasks[0]
    with pytest.raises(RememberingError, match="has no tasks"):
        Stream("empty", ())
    with pytest.raises(RememberingError, match="two tasks named"):
        Stream("twice", (task, task))


def test_a_task_is_not_tested_on_what_it_never_saw() -> None:
    images = np.zeros((4, 8, 8), np.uint8)
    train, test = Task("pets", images, ["cat", "dog"] * 2), Task("pets", images, ["cat", "cow"] * 2)
    with pytest.raises(RememberingError, match="tested on class 'cow'"):
        TaskData(train, test)


@pytest.mark.parametrize("seed", [0, 1])
def test_held_out_images_are_training_images_that_are_not_learned(seed: int) -> None:
    source = make_source(per_class=8)
    held_out = hold_out(source, 3, seed)

    def pixels(data: LabelledImages, label: int) -> set[int]:
        return set(data.images[data.labels == label][:, 0, 0, 0].tolist())

    for label in range(6):
        learned, tested = (pixels(part, label) for part in (held_out.train, held_out.test))
        assert (len(learned), len(tested)) == (5, 3)
        assert learned | tested == pixels(source.train, label)
    assert held_out.classes == source.classes
    other = hold_out(source, 3, seed + 1)
    assert any(pixels(other.test, i) != pixels(held_out.test, i) for i in range(6))


@pytest.mark.parametrize("count", [0, 8, 9])
def test_some_images_of_each_class_must_be_held_out_and_some_learned(count: int) -> None:
    with pytest.raises(RememberingError, match=rf"{count} of the 8 training images of class 'cl"):
        hold_out(make_source(per_class=8), count, 0)
