"""Models with class Gaussians, domains and references: the same bits, and no more writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import TWO_LEVEL, consolidated, learned, make_task, tensors

from remembering.backbones.backbone import Backbone
from remembering.config import ClassifierSettings
from remembering.model import RememberingTransformer
from remembering.storage import reader, writer
from remembering.storage.manifest import read_manifest
from remembering.storage.verify import verify

pytestmark = pytest.mark.unit
CONSOLIDATED = {**TWO_LEVEL, "adapters": "first", "memory": 20}
MODELS = {
    "two levels": TWO_LEVEL,
    "an adapter per task": {**TWO_LEVEL, "adapters": "task"},
    "logit correction": {**TWO_LEVEL, "classifier": ClassifierSettings(replay=2)},
    "consolidated": CONSOLIDATED,
    "without calibration images": {**CONSOLIDATED, "memory": 4},
}


def assert_same(one: RememberingTransformer, two: RememberingTransformer) -> None:
    before, after = tensors(one), tensors(two)
    assert before.keys() == after.keys()
    assert [key for key, value in before.items() if not torch.equal(after[key], value)] == []
    images = torch.cat([torch.as_tensor(make_task(i).images) for i in range(3)])
    assert torch.equal(one.predict_proba(images), two.predict_proba(images))
    assert torch.equal(one.novelty(images), two.novelty(images))


@pytest.mark.parametrize("name", MODELS)
def test_loads_and_learns_on_bit_for_bit(name: str, backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2, **MODELS[name])
    if model.settings.memory:
        model = RememberingTransformer(backbone, state=consolidated(model.state, backbone))
        assert list(model.state.references) == [0]
    model.save(tmp_path)
    again = RememberingTransformer.load(tmp_path)
    assert again.tasks == model.tasks
    assert_same(model, again)
    assert verify(tmp_path) == []
    for each in (model, again):
        each.learn(make_task(2, ("a2", "b2")))
    assert_same(model, again)
    again.save(tmp_path)
    assert_same(model, RememberingTransformer.load(tmp_path))
    assert verify(tmp_path) == []


@pytest.mark.parametrize("cache_bytes", [None, 0])
def test_a_consolidated_adapter_replaces_the_saved_one(
    cache_bytes: int | None, backbone: Backbone, tmp_path: Path
) -> None:
    learned(backbone, 2, **CONSOLIDATED).save(tmp_path)
    before = read_manifest(tmp_path).adapters["0"].folder
    state, _, saved = reader.load(tmp_path, backbone, cache_bytes=cache_bytes)
    old = state.adapters[0]
    for _ in range(2):  # the second time nothing has changed
        state, saved = writer.save(state, backbone, tmp_path, saved)
        assert read_manifest(tmp_path).generation == 1
    state, saved = writer.save(consolidated(state, backbone), backbone, tmp_path, saved)
    entry = read_manifest(tmp_path).adapters["0"]
    assert entry.folder != before
    assert entry.reference is not None
    assert entry.reference.folder == before, "the file of the adapter that it was"
    again = RememberingTransformer.load(tmp_path)
    assert torch.equal(again.state.adapters[0].b, 1.1 * old.b)
    assert torch.equal(again.state.references[0].adapter.b, old.b)
    assert len(list((tmp_path / "adapters").iterdir())) == 2


def test_a_save_encodes_only_what_is_new(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2, **CONSOLIDATED)
    model.save(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    model.learn(make_task(2, ("a2", "b2")))
    model.save(tmp_path)
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    new = {path for path in tmp_path.rglob("*.safetensors") if path not in times}
    assert sorted(path.parent.name for path in new) == [
        "classifiers",  # the classes of the task
        "classifiers",  # what the adapter shares
        "domains",
        "memory",
        "routers",
        "routers",
        "shares",
    ]


def test_forgetting_removes_the_files_of_a_task(backbone: Backbone, tmp_path: Path) -> None:
    model = learned(backbone, 2, **CONSOLIDATED)
    model.save(tmp_path)
    model.forget("task 1")
    model.save(tmp_path)
    model.learn(make_task(2, ("a2", "b2")))
    model.save(tmp_path)  # only now: the previous state is kept for one save
    assert not list(tmp_path.rglob("0001-*"))
