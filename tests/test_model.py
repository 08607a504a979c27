"""RememberingTransformer: learns, remembers, answers singly, and undoes what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support import FAST, TWO_LEVEL, learned, make_task, tensors
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.config import ClassifierSettings, RouterSettings
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.classify import adapter_outputs
from remembering.inference.predict import layers_run
from remembering.inference.prediction import choose_tasks
from remembering.learning import algorithm, training
from remembering.learning.fusion import fuse
from remembering.model import RememberingTransformer
from remembering.runtime.progress import Progress, Step


@pytest.fixture(scope="module")
def model(backbone: Backbone) -> RememberingTransformer:
    return learned(backbone, 3)


def test_predict_returns_labels_probabilities_adapters_and_scores(
    model: RememberingTransformer,
) -> None:
    prediction = model.predict(make_task(1, ("a1", "b1")).images)
    assert len(prediction.labels) == 12
    assert set(prediction.labels) <= set(model.classes)
    assert prediction.probabilities.shape == (12, 6)
    torch.testing.assert_close(prediction.probabilities.sum(1), torch.ones(12))
    assert prediction.scores.shape == (12, 3)
    assert prediction.adapters.tolist() == prediction.scores.argmin(1).tolist()
    assert prediction.tasks == [f"task {i}" for i in prediction.adapters.tolist()]
    for label, row in zip(prediction.labels, prediction.probabilities, strict=True):
        assert prediction.classes[int(row.argmax())] == label


def test_only_the_chosen_adapters_classes_have_probability(model: RememberingTransformer) -> None:
    prediction = model.predict(make_task(2).images)
    for adapter, row in zip(prediction.adapters.tolist(), prediction.probabilities, strict=True):
        known = [label in model.state.heads[adapter].classes for label in prediction.classes]
        assert bool((row[~torch.tensor(known)] == 0).all())


@settings(max_examples=15)
@given(order=st.permutations(range(9)), size=st.integers(1, 9))
def test_a_sample_is_answered_the_same_in_any_batch_and_order(
    order: list[int], size: int, model: RememberingTransformer
) -> None:
    images = torch.cat([make_task(i).images[:3] for i in range(3)])
    whole = model.predict(images)
    parts = [model.predict(images[list(order[i : i + size])]) for i in range(0, 9, size)]
    assert [label for part in parts for label in part.labels] == [whole.labels[i] for i in order]
    adapters = torch.cat([part.adapters for part in parts])
    assert torch.equal(adapters, whole.adapters[list(order)])
    probabilities = torch.cat([part.probabilities for part in parts])
    torch.testing.assert_close(probabilities, whole.probabilities[list(order)])


def test_a_group_is_routed_together(model: RememberingTransformer) -> None:
    images = torch.cat([make_task(i).images for i in (0, 2)])
    prediction = model.predict(images, groups=["camera 1"] * 12 + ["camera 2"] * 12)
    assert prediction.adapters.tolist() == [0] * 12 + [2] * 12
    with pytest.raises(RememberingError, match="3 groups are given for 24 images"):
        model.predict(images, groups=[1, 2, 3])
    with pytest.raises(RememberingError, match="groups must be names or numbers"):
        model.predict(images, groups=[[1]] * 24)
    with pytest.raises(RememberingError, match="no images"):
        model.novelty([])
    with pytest.raises(RememberingError, match=r"false_alarm_rate = 0\.05 must lie"):
        model.predict(images, false_alarm_rate="0.05")  # type: ignore[arg-type]


def test_choose_takes_the_lowest_sum_of_scores_of_each_group() -> None:
    errors = torch.tensor([[1.0, 2.0], [5.0, 2.0], [3.0, 1.0]])
    assert choose_tasks(errors, torch.tensor([0, 0, 1])).tolist() == [1, 1, 1]
    assert choose_tasks(errors).tolist() == [0, 1, 1]


def test_earlier_adapters_stay_bit_identical(backbone: Backbone) -> None:
    model = learned(backbone, 2)
    before = tensors(model)
    model.learn(make_task(2, ("x", "y", "z")))
    after = tensors(model)
    assert len(after) > len(before)
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_same_seed_same_bits(backbone: Backbone) -> None:
    one, two = (tensors(learned(backbone, 2, **TWO_LEVEL, seed=4)) for _ in range(2))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    other = tensors(learned(backbone, 2, **TWO_LEVEL, seed=5))
    assert not torch.equal(one["a0"], other["a0"])


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_capacity_is_kept_and_every_task_is_served(capacity: int, backbone: Backbone) -> None:
    model = learned(backbone, 5, capacity=capacity, memory=6)
    assert len(model.state.adapters) == len(model.state.heads) == capacity
    assert len(model.state.router.experts) == len(model.state.memories) == 5
    for record in model.tasks:
        assert record.adapter in model.state.adapters
        assert set(record.classes) <= set(model.state.heads[record.adapter].classes)
    assert set(model.classes) == {f"{c}{i}" for c in "ab" for i in range(5)}
    assert model.footprint().adapters == capacity * model.state.adapters[4].parameters


def test_fusion_replays_every_task_that_the_absorbed_adapter_serves(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = []

    def watched(*arguments: Any) -> Any:
        memories = next(a for a in arguments if isinstance(a, list))
        replayed.append([sorted(set(memory.labels)) for memory in memories])
        return fuse(*arguments)

    monkeypatch.setattr(algorithm, "fuse", watched)
    model = learned(backbone, 4, capacity=1, memory=4)
    pairs = [[f"a{i}", f"b{i}"] for i in range(4)]
    assert replayed == [pairs[:1], pairs[:2], pairs[:3]]
    assert {record.adapter for record in model.tasks} == {3}


def test_fusion_takes_the_adapter_of_the_most_similar_task(backbone: Backbone) -> None:
    model = learned(backbone, 3, capacity=3, memory=4)
    twin = Task("twin of 1", make_task(1).images, ["x", "y"] * 6)
    model.learn(twin)
    assert [record.adapter for record in model.tasks] == [0, 3, 2, 3]


def test_the_fusion_loss_is_the_papers(backbone: Backbone) -> None:
    """α ℓ_CE + (1 − α) ℓ_L2 by hand for the first step of a fusion."""
    model = learned(backbone, 1, capacity=1, memory=100, epochs=1, batch_size=100)
    task, old = make_task(1, ("x", "y")), make_task(0)
    adapter, head = model.state.adapters[0], model.state.heads[0]
    losses = []

    class Watch(Progress):
        @contextmanager
        def track(self, description: str, total: int) -> Iterator[Step]:
            yield lambda advance, note="": losses.append(note)

    before = adapter.a.clone()
    model.learn(task, progress=Watch())
    with torch.no_grad():
        wider = head.extended(("x", "y"))
        new = training.logits(backbone, adapter, wider, backbone.embed(task.images))
        ce = F.cross_entropy(new, torch.tensor([2] * 6 + [3] * 6))
        tokens = backbone.embed(old.images)
        soft = training.logits(backbone, adapter, wider, tokens).softmax(1)
        wanted = F.pad(training.logits(backbone, adapter, head, tokens).softmax(1), (0, 2))
        l2 = (soft - wanted).square().sum(1).mean()
    assert losses[-1] == f"loss {0.5 * ce + 0.5 * l2:.3f}"
    assert torch.equal(adapter.a, before)


def test_without_capacity_no_image_is_kept(model: RememberingTransformer) -> None:
    assert not model.state.memories
    assert model.footprint().replay_bytes == 0


def test_labels_may_repeat_across_tasks(backbone: Backbone) -> None:
    model = RememberingTransformer.from_backbone(backbone, **FAST)
    for number in range(2):
        model.learn(make_task(number, (3, 7)))
    assert model.classes == (3, 7)
    assert model.predict(make_task(0).images).probabilities.shape == (12, 2)


def test_the_frozen_head(checkpoints: dict[str, Any]) -> None:
    backbone = Backbone.load(checkpoints["vit-classifier"])
    model = learned(backbone, 3, head="frozen", capacity=2, memory=6)
    assert model.footprint().heads == 0
    assert model.state.heads[2].columns.tolist() in ([0, 1, 4, 5], [2, 3, 4, 5])
    prediction = model.predict(make_task(2).images)
    torch.testing.assert_close(prediction.probabilities.sum(1), torch.ones(12))
    with pytest.raises(RememberingError, match="has 10 outputs and all are taken"):
        learned(backbone, 6, head="frozen")


def test_a_checkpoint_without_classifier_has_no_frozen_head(backbone: Backbone) -> None:
    with pytest.raises(RememberingError, match="has no classifier of its own"):
        learned(backbone, 1, head="frozen")


def test_adapters_above_the_router_need_one_pass(backbone: Backbone) -> None:
    one = learned(backbone, 2, first_layer=2, router=RouterSettings(kind="subspace", layers=(1, 2)))
    two = learned(backbone, 2, first_layer=0, router=RouterSettings(kind="subspace", layers=(3,)))
    assert layers_run(one.state, backbone.depth) == 3
    assert layers_run(two.state, backbone.depth) == 6
    for model in (one, two):
        images = make_task(1).images
        prediction = model.predict(images)
        for number in set(prediction.adapters.tolist()):
            rows = prediction.adapters == number
            logits = adapter_outputs(model.state, backbone, images[rows], number).plain
            columns = [model.classes.index(label) for label in model.state.heads[number].classes]
            alone = prediction.probabilities[rows][:, columns]
            torch.testing.assert_close(alone, logits.softmax(1))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"first_layer": 1},
        {"router": RouterSettings(kind="subspace", layers=(2,))},
        {**TWO_LEVEL, "classifier": ClassifierSettings(second_view=0)},
    ],
)
def test_as_many_layers_run_as_the_model_says(changes: dict[str, Any], backbone: Backbone) -> None:
    model = learned(backbone, 2, **changes)
    ran: list[int] = []
    hooks = [layer.register_forward_hook(lambda *_: ran.append(1)) for layer in backbone.layers]
    model.predict(make_task(1).images[:1])
    for hook in hooks:
        hook.remove()
    assert len(ran) == layers_run(model.state, backbone.depth)


@pytest.mark.parametrize("first_layer", [3, 99])
def test_layers_that_are_not_there_are_refused(first_layer: int, backbone: Backbone) -> None:
    with pytest.raises(RememberingError, match="is not among the 3 layers"):
        RememberingTransformer.from_backbone(backbone, first_layer=first_layer)
    with pytest.raises(RememberingError, match="load it again for 32"):
        RememberingTransformer.from_backbone(backbone, image_size=32)


def test_router_layers_past_the_end_are_refused(backbone: Backbone) -> None:
    with pytest.raises(RememberingError, match="exceeds the 3 layers"):
        learned(backbone, 1, router=RouterSettings(layers=(4,)))


def test_learns_from_files_datasets_and_pil(backbone: Backbone, tmp_path: Any) -> None:
    from datasets import Dataset, Features, Value
    from datasets import Image as ImageFeature

    task = make_task(0)
    pictures = [Image.fromarray(x.permute(1, 2, 0).numpy()) for x in task.images]
    for i, (picture, label) in enumerate(zip(pictures, task.labels, strict=True)):
        (tmp_path / label).mkdir(exist_ok=True)
        picture.save(tmp_path / label / f"{i:02d}.png")
    features = Features({"img": ImageFeature(), "label": Value("string")})
    dataset = Dataset.from_dict({"img": pictures, "label": list(task.labels)}, features)
    same = [
        task,
        Task("pil", pictures, task.labels),
        Task.from_folder(tmp_path),
        Task.from_dataset(dataset, "dataset"),
        Task("numpy", task.images.permute(0, 2, 3, 1).numpy(), np.array(task.labels)),
    ]
    answers = []
    for each in same:
        model = RememberingTransformer.from_backbone(backbone, **FAST)
        model.learn(each)
        answers.append(model.predict(task.images).probabilities)
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0])


class TestWrongInputLeavesNoTrace:
    """Each failure names what is wrong, and the model is bit for bit what it was."""

    @pytest.fixture
    def model(self, backbone: Backbone) -> RememberingTransformer:
        return learned(backbone, 2, capacity=2, memory=4)

    def check(self, model: RememberingTransformer, task: Task, message: str) -> None:
        before, records = tensors(model), model.tasks
        with pytest.raises(RememberingError, match=message):
            model.learn(task)
        assert model.tasks == records
        after = tensors(model)
        assert before.keys() == after.keys()
        assert all(torch.equal(after[key], value) for key, value in before.items())

    def test_one_class(self, model: RememberingTransformer) -> None:
        self.check(model, Task("t", torch.zeros(3, 8, 8), ["x"] * 3), "only the class 'x'")

    def test_a_class_with_one_image(self, model: RememberingTransformer) -> None:
        task = Task("t", torch.zeros(3, 8, 8), ["x", "x", "y"])
        self.check(model, task, "class 'y' of task 't' has one image")

    def test_a_name_twice(self, model: RememberingTransformer) -> None:
        self.check(model, make_task(1), "'task 1' is already learned")

    def test_another_kind_of_labels(self, model: RememberingTransformer) -> None:
        self.check(model, make_task(9, (1, 2)), "has int labels, but the model has str")

    def test_a_loss_that_is_no_number(
        self, model: RememberingTransformer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*arguments: Any, **options: Any) -> Tensor:
            return torch.tensor(float("nan"), requires_grad=True)

        monkeypatch.setattr(training.F, "cross_entropy", broken)
        self.check(model, make_task(2), "became nan in epoch 1.*lower lr")

    def test_a_generative_model_that_diverges(
        self, model: RememberingTransformer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broken = {"basis": torch.full((17, 1), float("inf"))}
        monkeypatch.setattr(type(model.state.router), "fit", lambda *_: broken)
        self.check(model, make_task(2), "diverged.*lower router.lr")

    def test_an_image_that_cannot_be_read(
        self, model: RememberingTransformer, tmp_path: Any
    ) -> None:
        paths = [tmp_path / f"{i}.png" for i in range(4)]
        for path in paths[:3]:
            Image.new("L", (8, 8)).save(path)
        paths[3].write_bytes(b"no image")
        self.check(model, Task("t", paths, ["x", "y"] * 2), r"3\.png is not an image")

    def test_interrupted(
        self, model: RememberingTransformer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*arguments: Any, **options: Any) -> Tensor:
            raise KeyboardInterrupt

        before = tensors(model)
        monkeypatch.setattr(training.F, "cross_entropy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.learn(make_task(2))
        after = tensors(model)
        assert all(torch.equal(after[key], value) for key, value in before.items())
        assert len(model.tasks) == 2


@pytest.mark.parametrize("capacity", [None, 2])
def test_forgetting_leaves_the_rest_as_it_was(capacity: int | None, backbone: Backbone) -> None:
    model = learned(backbone, 4, capacity=capacity, memory=4)
    before = tensors(model)
    record = model.tasks[1]
    others = {other.name: other for other in model.tasks if other is not record}
    shared = [other.name for other in others.values() if other.adapter == record.adapter]
    images = make_task(3).images
    answers = adapter_outputs(model.state, backbone, images, 3).plain
    heads = model.state.heads
    gone = model.forget("task 1")
    assert gone.task == record
    assert gone.shared_with == tuple(shared)
    assert gone.replay_images == (4 if capacity else 0)
    assert {other.name: other for other in model.tasks} == others
    assert (record.adapter in model.state.adapters) == bool(shared)
    rows = {  # a shared head keeps those of the other tasks
        n: torch.tensor([label not in record.classes for label in heads[n].classes])
        for n in model.state.heads
    }
    for n, kept in rows.items():
        before |= {key: before[key][kept] for key in (f"w{n}", f"c{n}")}
    after = tensors(model)
    assert after.keys() < before.keys()
    assert all(torch.equal(before[key], value) for key, value in after.items())
    left = adapter_outputs(model.state, backbone, images, 3).plain
    torch.testing.assert_close(left, answers[:, rows[3]], rtol=1e-5, atol=1e-5)
    assert model.predict(images).scores.shape == (12, 3)
    model.learn(make_task(1, ("a1", "b1")))
    with pytest.raises(RememberingError, match=r"no task 'x'.*'task 0'"):
        model.forget("x")


def test_forgetting_frees_outputs_of_the_frozen_head(checkpoints: dict[str, Any]) -> None:
    model = learned(Backbone.load(checkpoints["vit-classifier"]), 5, head="frozen")
    model.forget("task 1")
    model.learn(make_task(7, ("x", "y")))
    columns = [column for head in model.state.heads.values() for column in head.columns.tolist()]
    assert sorted(columns) == list(range(10))


def test_nothing_learned_nothing_answered(backbone: Backbone) -> None:
    model = RememberingTransformer.from_backbone(backbone)
    with pytest.raises(RememberingError, match="has not learned a task yet"):
        model.predict(torch.zeros(1, 8, 8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": 0}, "capacity = 0 must be at least 1"),
        ({"rank": 0}, "rank = 0"),
        ({"alpha": 1.5}, "alpha = 1.5"),
        ({"lr": 0.0}, "lr = 0.0"),
        ({"weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_bad_settings_are_refused_at_once(
    change: dict[str, Any], message: str, backbone: Backbone
) -> None:
    with pytest.raises(RememberingError, match=message):
        RememberingTransformer.from_backbone(backbone, **change)
