"""What `learn` reports: time, accuracy on held-out training images, and warnings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from support import FAST, TWO_LEVEL, consolidated, make_task

from remembering import RememberingTransformer, Settings, Task
from remembering.backbones.backbone import Backbone
from remembering.config import ClassifierSettings
from remembering.learning import held_out as module
from remembering.learning.held_out import Correct, HeldOut, held_out
from remembering.learning.learned import Learned
from remembering.runtime.seeding import generator
from remembering.state import ModelState

PER_CLASS = 24


def two_level(backbone: Backbone, tasks: int, **changes: object) -> RememberingTransformer:
    options = {**TWO_LEVEL, "classifier": ClassifierSettings(second_view=0), "epochs": 0, **changes}
    model = RememberingTransformer.from_backbone(backbone, **options)
    for number in range(tasks):
        model.learn(make_task(number, (f"a{number}", f"b{number}", f"c{number}"), PER_CLASS))
    return model


def held_out_rows(state: ModelState, task: Task, *, first: bool) -> torch.Tensor:
    """The images of a task that are not part of its class statistics."""
    classifier = next(iter(state.classifiers.values()))
    empty = type(classifier)(classifier.settings)
    rng = generator(state.settings.seed, "classifier")
    return (empty if first else classifier).choose_calibration(task.targets, rng)


def test_it_is_the_accuracy_of_predict_on_images_not_learned_from(backbone: Backbone) -> None:
    """With one adapter and one view, the complete answer path can be repeated on the images."""
    model = two_level(backbone, 3, adapters="first")
    found = held_out(model.state)
    assert found is not None
    assert found.routing is None, "there is one adapter"
    for i, record in enumerate(model.tasks):
        task = make_task(i, (f"a{i}", f"b{i}", f"c{i}"), PER_CLASS)
        rows = held_out_rows(model.state, task, first=i == 0)
        counts = model.state.classifiers[0].experts[record.number]["counts"]
        assert counts.sum() == (len(task) - len(rows)) * (
            2 if model.state.classifiers[0].uses_flip else 1
        )
        answers = model.predict(task.images[rows]).labels
        wanted = [task.labels[row] for row in rows.tolist()]
        correct = sum(a == b for a, b in zip(answers, wanted, strict=True))
        # Vectors are kept in half precision, which may decide a tie.
        assert abs(found.tasks[record.name].correct - correct) <= 1
        assert found.tasks[record.name].images == len(rows) == 12
        assert found.within[record.name].correct >= found.tasks[record.name].correct
    assert found.total.images == 36
    assert found.total.correct == sum(count.correct for count in found.tasks.values())


def test_a_task_with_random_labels_is_reported_as_guesswork(backbone: Backbone) -> None:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (96, 3, 16, 16), generator=rng).to(torch.uint8)
    learned = two_level(backbone, 0).learn(Task("noise", images, ["a", "b"] * 48))
    assert learned.held_out is not None
    assert learned.held_out.tasks["noise"].images == 16
    assert learned.held_out.tasks["noise"].accuracy < 0.75
    (warning,) = learned.warnings
    for words in ("'noise' may be guesswork", "guessing gives 50%", "check the labels"):
        assert words in warning
    assert "accuracy on held-out training images" in repr(learned)
    assert warning in repr(learned)


def test_a_good_task_causes_no_warning(backbone: Backbone) -> None:
    learned = two_level(backbone, 0).learn(make_task(0, ("a", "b"), PER_CLASS))
    assert learned.held_out is not None
    assert learned.held_out.tasks["task 0"].accuracy > 0.9
    assert learned.warnings == ()
    assert learned.seconds > 0


@pytest.mark.parametrize(
    ("correct", "images", "classes", "poor"),
    [(7, 8, 2, False), (6, 8, 2, True), (4, 4, 2, True), (4, 20, 5, True), (9, 20, 5, False)],
)
def test_poor_means_not_significantly_better_than_guessing(
    correct: int, images: int, classes: int, poor: bool, backbone: Backbone
) -> None:
    names = tuple(map(str, range(classes)))
    model = two_level(backbone, 0)
    model.learn(make_task(0, names, 4))
    learned = Learned(model.tasks[0], 1.0, model.state)
    counts = {"task 0": Correct(correct, images)}
    vars(learned)["held_out"] = HeldOut(counts, counts)
    too_few = (1 / classes) ** images >= 0.05
    assert bool(learned.warnings) == (poor and not too_few)


def test_nothing_is_said_where_nothing_is_held_out(backbone: Backbone) -> None:
    heads = RememberingTransformer.from_backbone(backbone, **FAST)
    learned = heads.learn(make_task(0, per_class=12))
    assert learned.held_out is None
    assert learned.accuracy_text == ""
    assert learned.warnings == ()
    assert "accuracy" not in repr(learned)


def test_a_correction_that_is_fitted_to_held_out_images_is_no_measure(backbone: Backbone) -> None:
    classifier = ClassifierSettings(replay=8, second_view=0)
    assert held_out(two_level(backbone, 2, classifier=classifier).state) is None


def test_several_adapters(backbone: Backbone) -> None:
    model = two_level(backbone, 1, adapters="task")
    learned = model.learn(make_task(1, ("a1", "b1"), PER_CLASS))
    assert learned.held_out is not None
    assert learned.held_out.routing is not None
    assert learned.held_out.routing.images > 8
    assert "each with the adapter of its task, which the router chooses for" in (
        learned.accuracy_text
    )


def test_recurring_labels_are_correct_in_either_task(backbone: Backbone) -> None:
    """As in `predict`, the probabilities of a label are summed over the tasks that have it."""
    model = two_level(backbone, 0, adapters="first")
    task = make_task(0, ("a", "b"), PER_CLASS)
    model.learn(task)
    again = model.learn(Task("again", task.images, task.labels))
    assert again.held_out is not None
    assert again.held_out.total.accuracy > 0.9
    (warning,) = again.warnings
    assert "'again' repeats classes of 'task 0': 'a', 'b'; to add images" in warning


def test_after_consolidation(backbone: Backbone) -> None:
    model = two_level(backbone, 2, adapters="first", memory=16)
    state = consolidated(model.state, backbone)
    found = held_out(state)
    assert found is not None
    assert found.total.images == sum(memory.held_out for memory in state.memories.values())


def test_the_number_of_vectors_is_bounded(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = two_level(backbone, 2, adapters="first")
    monkeypatch.setattr(module, "MAX_VECTORS", 12)
    found = held_out(model.state)
    assert found is not None
    assert [count.images for count in found.tasks.values()] == [6, 6]


def test_few_images(backbone: Backbone) -> None:
    task = make_task(0, ("a", "b", "c"), 12)
    rows = torch.tensor([i for i in range(36) if task.labels[i] != "b" or i < 15])
    few = Task("few", task.images[rows], [task.labels[i] for i in rows.tolist()])
    assert Counter(few.labels) == {"a": 12, "b": 3, "c": 12}
    learned = two_level(backbone, 0).learn(few)
    assert (
        "1 of the 3 classes of 'few' have fewer than 10 images ('b' has 3)"
        in (learned.warnings[-1])
    )


def test_photos_on_the_bundled_backbone() -> None:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (24, 3, 28, 28), generator=rng).to(torch.uint8)
    labels = ["a", "b"] * 12
    model = RememberingTransformer.from_backbone("bundled", epochs=0)
    warnings = model.learn(Task("photos", images, labels)).warnings
    text = "the bundled backbone has seen nothing but grey letters of 28 px, and images in colour"
    assert any(text in w and "such as facebook/dinov2-small" in w for w in warnings)
    grey = images[:, :1].expand(-1, 3, -1, -1)
    more = model.learn(Task("grey", grey, [f"{label}2" for label in labels])).warnings
    assert not any("bundled" in warning for warning in more)


def test_the_report_belongs_to_the_state_after_its_task(backbone: Backbone) -> None:
    """It is computed when it is read, which may be after further tasks."""
    model = two_level(backbone, 0, adapters="first")
    learned = model.learn(make_task(0, ("a0", "b0"), PER_CLASS))
    model.learn(make_task(1, ("a1", "b1"), PER_CLASS))
    assert learned.held_out is not None
    assert list(learned.held_out.tasks) == ["task 0"]


def test_with_settings_takes_single_settings(backbone: Backbone) -> None:
    model = two_level(backbone, 1)
    other = model.with_settings(epochs=2)
    assert other.settings == replace(model.settings, epochs=2)
    assert other.tasks == model.tasks
    with pytest.raises(Exception, match="did you mean 'epochs'"):
        model.with_settings(epoch=2)
    with pytest.raises(Exception, match="did you mean 'capacity'"):
        Settings.paper(capacty=2)
