"""Training that stops half-way goes on with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from support import FAST, DiedError, Dying, learned, make_task, tensors

from remembering.backbones.backbone import Backbone
from remembering.learning.checkpoint import Checkpoint, digest
from remembering.model import RememberingTransformer
from remembering.runtime.progress import Progress, Step
from remembering.runtime.tensors import decode_tensors

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("capacity", [None, 1])
@pytest.mark.parametrize("saves", range(5))
def test_goes_on_with_the_same_bits(
    saves: int, capacity: int | None, backbone: Backbone, tmp_path: Path
) -> None:
    changes = {"capacity": capacity, "memory": 5}
    whole = learned(backbone, 2, **changes)
    cut = learned(backbone, 1, **changes)
    path = tmp_path / "progress.safetensors"
    path.with_suffix(".left").write_text(str(saves))
    task = make_task(1, ("a1", "b1"))
    with pytest.raises(DiedError):
        cut.learn(task, checkpoint=Dying(path, steps=1))
    assert path.exists()
    again = learned(backbone, 1, **changes)
    again.learn(task, checkpoint=Checkpoint(path, steps=1))
    one, two = tensors(whole), tensors(again)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


class Recorded(Progress):
    """Records how many images of a training are announced and done."""

    def __init__(self) -> None:
        self.announced = self.done = 0

    @contextmanager
    def track(self, description: str, total: int) -> Iterator[Step]:
        def step(advance: int, note: str = "") -> None:
            self.done += advance * training

        training = description.startswith("learning")
        self.announced += total * training
        yield step


@pytest.mark.parametrize("saves", [0, 2])
def test_progress_counts_what_is_left(saves: int, backbone: Backbone, tmp_path: Path) -> None:
    """12 images in batches of 8 and 4, for 3 epochs."""
    path, task = tmp_path / "progress.safetensors", make_task(0)
    path.with_suffix(".left").write_text(str(saves))
    with pytest.raises(DiedError):
        learned(backbone, 0).learn(task, checkpoint=Dying(path, steps=1))
    progress = Recorded()
    learned(backbone, 0).learn(task, checkpoint=Checkpoint(path, steps=1), progress=progress)
    assert progress.announced == progress.done == 36 - {0: 8, 2: 20}[saves]


def test_progress_of_another_task_is_not_taken_over(backbone: Backbone, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "progress.safetensors")
    learned(backbone, 1).learn(make_task(1, ("a1", "b1")), checkpoint=checkpoint)
    assert checkpoint.path.exists()
    plain, other = learned(backbone, 1), learned(backbone, 1)
    plain.learn(make_task(2, ("x", "y")))
    other.learn(make_task(2, ("x", "y")), checkpoint=checkpoint)
    one, two = tensors(plain), tensors(other)
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_fusion_with_another_past_begins_anew(backbone: Backbone, tmp_path: Path) -> None:
    """The old task is forgotten between death and resume: nothing of the old fusion may be used."""
    path = tmp_path / "progress.safetensors"
    path.with_suffix(".left").write_text("1")
    task = make_task(2, ("x", "y"))
    cut = learned(backbone, 2, capacity=2, memory=4)
    with pytest.raises(DiedError):
        cut.learn(task, checkpoint=Dying(path, steps=1))
    changed, plain = (learned(backbone, 2, capacity=2, memory=4) for _ in range(2))
    for model in (changed, plain):
        model.forget("task 0")
    changed.learn(task, checkpoint=Checkpoint(path))
    plain.learn(task)
    one, two = tensors(plain), tensors(changed)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_flipped_byte_counts_as_none(backbone: Backbone, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "progress.safetensors")
    task = make_task(1, ("a1", "b1"))
    learned(backbone, 1).learn(task, checkpoint=checkpoint)
    data = checkpoint.path.read_bytes()
    checkpoint.path.write_bytes(data[:-9] + bytes([data[-9] ^ 64]) + data[-8:])
    again = learned(backbone, 1)
    again.learn(task, checkpoint=checkpoint)
    one, two = tensors(learned(backbone, 2)), tensors(again)
    assert all(torch.equal(one[key], two[key]) for key in one)


def first_average(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name in tensors if name.endswith(".exp_avg"))


@pytest.mark.parametrize(
    "change",
    [
        lambda t, m: m.update(step="-5"),
        lambda t, m: m.update(step="five"),
        lambda t, m: t.update({"parameter.0": t["parameter.0"].bfloat16()}),
        lambda t, m: t.update({"parameter.0": t["parameter.0"][:1]}),
        lambda t, m: t.update({first_average(t): torch.zeros(3)}),
        lambda t, m: t.pop(first_average(t)),
        lambda t, m: t.update({"optimizer.99.step": torch.zeros(())}),
    ],
    ids=["negative step", "step", "type", "shape", "state shape", "lost state", "more state"],
)
def test_hashes_that_are_consistent_are_not_enough(
    change: Callable[[dict[str, torch.Tensor], dict[str, str]], object],
    backbone: Backbone,
    tmp_path: Path,
) -> None:
    """A file that does not fit the training run is ignored, whatever it claims."""
    path, task = tmp_path / "progress.safetensors", make_task(1, ("a1", "b1"))
    path.with_suffix(".left").write_text("1")
    with pytest.raises(DiedError):
        learned(backbone, 1).learn(task, checkpoint=Dying(path, steps=1))
    stored, metadata = decode_tensors(path.read_bytes())
    change(stored, metadata)
    metadata["names"] = " ".join(stored)
    if all(tensor.dtype != torch.bfloat16 for tensor in stored.values()):
        metadata["sha256"] = digest(stored.values())
    path.write_bytes(save(stored, metadata=metadata))
    again = learned(backbone, 1)
    again.learn(task, checkpoint=Checkpoint(path, steps=1))
    one, two = tensors(learned(backbone, 2)), tensors(again)
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("damage", [b"", b"nothing", None])
def test_a_damaged_file_counts_as_none(
    damage: bytes | None, backbone: Backbone, tmp_path: Path
) -> None:
    path = tmp_path / "progress.safetensors"
    if damage is not None:
        path.write_bytes(damage)
    model = RememberingTransformer.from_backbone(backbone, **FAST)
    model.learn(make_task(0), checkpoint=Checkpoint(path))
    assert len(model.tasks) == 1
