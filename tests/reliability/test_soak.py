"""Many tasks in one process: memory, descriptors, folder size and time per task stay flat."""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from support import FAST, TWO_LEVEL, learned, make_task, sized

from remembering.backbones.backbone import Backbone
from remembering.inference.classify import adapter_outputs
from remembering.model import RememberingTransformer
from remembering.storage.manifest import read_manifest
from remembering.storage.verify import verify

pytestmark = pytest.mark.reliability
TASKS = sized(60, 300, 300)


def resident() -> int:
    """Return the memory that this process has in use, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


MODELS: dict[str, dict[str, Any]] = {
    "capacity 10": {**FAST, "capacity": 10},
    "no capacity": FAST,
    "default": {**TWO_LEVEL, "adapters": "first"},
}


@pytest.mark.parametrize("name", MODELS)
def test_many_tasks(name: str, backbone: Backbone, tmp_path: Path) -> None:
    """No adapter ever changes: it answers at the end with the bits of its first day.

    Accuracy after many fusions is not tested here: one step per task with rank 1 on a random
    backbone is too little to distil from.
    """
    model = learned(backbone, 0, **{**MODELS[name], "memory": 4, "epochs": 1})
    memory, descriptors, sizes, seconds = [], [], [], []
    probe = make_task(0, ("a0", "b0"))
    outputs: dict[int, torch.Tensor] = {}
    for number in range(TASKS):
        started = time.process_time()  # other processes do not count
        model.learn(make_task(number, (f"a{number}", f"b{number}"), per_class=3))
        adapter = model.tasks[-1].adapter
        outputs[adapter] = adapter_outputs(model.state, backbone, probe.images, adapter).plain
        model.save(tmp_path)
        seconds.append(time.process_time() - started)
        assert len(read_manifest(tmp_path).tasks) == number + 1
        if number % 10 == 9:
            model = RememberingTransformer.load(tmp_path, backbone=backbone)
            memory.append(resident())
            descriptors.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
            sizes.append(size(tmp_path))
    assert len(model.tasks) == TASKS
    adapters = {"capacity 10": 10, "no capacity": TASKS, "default": 1}
    assert len(model.state.adapters) == adapters[name]
    assert verify(tmp_path) == []
    assert max(descriptors) - min(descriptors) <= 2
    assert memory[-1] - memory[4] < 64 * 1024**2
    growth = [later - earlier for earlier, later in itertools.pairwise(sizes)]
    assert max(growth[2:]) < 1.5 * statistics.median(growth), "the folder grows by each task alone"
    early, late = statistics.median(seconds[20:50]), statistics.median(seconds[-30:])
    print(f"{1000 * early:.0f} ms per task, then {1000 * late:.0f} ms; {memory=}; {growth=}")
    assert late < 2.5 * early + 0.01, f"{late:.3f} s per task after {early:.3f} s"
    for number in model.state.adapters:
        again = adapter_outputs(model.state, backbone, probe.images, number).plain
        assert torch.equal(again, outputs[number])


def test_models_are_freed_when_dropped(backbone: Backbone, tmp_path: Path) -> None:
    """By reference counting alone: a server that reloads must not wait for the collector."""
    learned(backbone, 2, capacity=2, memory=4).save(tmp_path)
    gc.collect()
    gc.disable()
    try:
        dropped = []
        for _ in range(40):
            model = RememberingTransformer.load(tmp_path, backbone=backbone)
            model.predict(make_task(0).images)
            dropped.append((weakref.ref(model), weakref.ref(model.state)))
        del model
        assert [pair for pair in dropped if any(reference() for reference in pair)] == []
    finally:
        gc.enable()
