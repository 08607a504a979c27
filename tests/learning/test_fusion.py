"""The fusion loss, computed by hand, and the alternatives that its settings offer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import FAST, learned, make_task

from remembering.backbones.backbone import Backbone
from remembering.config import FusionSettings, Settings
from remembering.errors import RememberingError
from remembering.learning import algorithm, training
from remembering.learning.fusion import fuse
from remembering.model import RememberingTransformer
from remembering.runtime.progress import Progress, Step
from remembering.runtime.seeding import generator

WHOLE_BATCHES: dict[str, Any] = {**FAST, "capacity": 1, "memory": 100, "batch_size": 100}


class Losses(Progress):
    """Collects the losses of all steps, as they are shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Step]:
        yield lambda advance, note="": self.shown.append(note)


def first_loss(model: RememberingTransformer) -> str:
    """The loss of the first step in which a second task is learned."""
    losses = Losses()
    model.learn(make_task(1, ("x", "y")), progress=losses)
    return next(note for note in losses.shown if note.startswith("loss"))


def test_the_loss_at_alpha_0_25(backbone: Backbone) -> None:
    """0.25 ℓ_CE + 0.75 ℓ_L2, on the soft probabilities of the old adapter."""
    model = learned(backbone, 1, **{**WHOLE_BATCHES, "alpha": 0.25})
    adapter, head = model.state.adapters[0], model.state.heads[0]
    with torch.no_grad():
        wider = head.extended(("x", "y"))
        new = backbone.embed(make_task(1).images)
        ce = F.cross_entropy(
            training.logits(backbone, adapter, wider, new), torch.tensor([2] * 6 + [3] * 6)
        )
        old = backbone.embed(make_task(0).images)
        soft = training.logits(backbone, adapter, wider, old).softmax(1)
        teacher = F.pad(training.logits(backbone, adapter, head, old).softmax(1), (0, 2))
        l2 = (soft - teacher).square().sum(1).mean()
    assert f"{0.25 * ce + 0.75 * l2:.3f}" != f"{0.5 * ce + 0.5 * l2:.3f}"
    assert first_loss(model) == f"loss {0.25 * ce + 0.75 * l2:.3f}"


def test_hard_labels_are_learned_by_cross_entropy(backbone: Backbone) -> None:
    """0.25 ℓ_CE + 0.75 ℓ_CE of the replayed labels, in the columns of the wider head."""
    fusion = FusionSettings(labels="hard")
    model = learned(backbone, 1, **{**WHOLE_BATCHES, "alpha": 0.25, "fusion": fusion})
    adapter, head = model.state.adapters[0], model.state.heads[0]
    with torch.no_grad():
        wider = head.extended(("x", "y"))
        parts = [
            training.logits(backbone, adapter, wider, backbone.embed(make_task(i).images))
            for i in (0, 1)
        ]
        ce, replayed = (
            F.cross_entropy(logits, torch.tensor([first] * 6 + [first + 1] * 6))
            for logits, first in ((parts[1], 2), (parts[0], 0))
        )
    assert first_loss(model) == f"loss {0.25 * ce + 0.75 * replayed:.3f}"


def test_a_fresh_start_is_that_of_a_task_of_its_own(backbone: Backbone) -> None:
    fusion = FusionSettings(start="fresh")
    model = learned(backbone, 1, **{**WHOLE_BATCHES, "alpha": 0.25, "fusion": fusion})
    adapter, head = model.state.adapters[0], model.state.heads[0]
    old = backbone.embed(make_task(0).images)
    with torch.no_grad():
        teacher = F.pad(training.logits(backbone, adapter, head, old).softmax(1), (0, 2))
    ce = torch.tensor(4.0).log()  # the new head is zero: all four classes are equally probable
    l2 = (0.25 - teacher).square().sum(1).mean()
    assert first_loss(model) == f"loss {0.25 * ce + 0.75 * l2:.3f}"
    other = learned(backbone, 1, **{**WHOLE_BATCHES, "lr": 1e-12, "fusion": fusion})
    other.learn(make_task(1, ("x", "y")))
    rng = generator(other.state.settings.seed, "task", 1)
    start = type(adapter).new(backbone, 1, 0, rng)
    torch.testing.assert_close(other.state.adapters[1].a, start.a)


@pytest.mark.parametrize(
    ("replay", "replayed"), [("all", [[0], [0, 1], [0, 1, 2]]), ("nearest", [[0], [0], [0]])]
)
def test_which_tasks_are_replayed(
    replay: Any, replayed: list[list[int]], backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nearest` replays one task; every task of the absorbed adapter is redirected all the same."""
    found = []

    def watched(*arguments: Any) -> Any:
        memories = next(a for a in arguments if isinstance(a, list))
        found.append([int(str(memory.labels[0])[1:]) for memory in memories])
        return fuse(*arguments)

    monkeypatch.setattr(algorithm, "fuse", watched)
    monkeypatch.setattr(algorithm, "_most_similar_task", lambda state, encoded: state.tasks[0])
    model = learned(backbone, 4, capacity=1, memory=4, fusion=FusionSettings(replay=replay))
    assert found == replayed
    assert {record.adapter for record in model.tasks} == {3}


@pytest.mark.parametrize(
    "settings", [Settings(**FAST), Settings.paper(epochs=1)], ids=["subspace", "paper"]
)
def test_tasks_that_were_learned_without_a_capacity_are_not_fused(
    settings: Settings, backbone: Backbone
) -> None:
    model = RememberingTransformer(backbone, settings)
    model.learn(make_task(0))
    limited = replace(model.state, settings=replace(model.state.settings, capacity=1))
    model = RememberingTransformer(backbone, state=limited)
    with pytest.raises(RememberingError, match=r"'task 0' cannot be fused.*without a capacity"):
        model.learn(make_task(1, ("x", "y")))
    assert model.state is limited


def test_without_heads_a_capacity_needs_no_replay_images(backbone: Backbone) -> None:
    model = RememberingTransformer(backbone, Settings(epochs=1, adapters="task"))
    model.learn(make_task(0))
    limited = replace(model.state, settings=replace(model.state.settings, capacity=1))
    model = RememberingTransformer(backbone, state=limited)
    model.learn(make_task(1, ("x", "y")))
    assert [task.adapter for task in model.tasks] == [0, 0]
