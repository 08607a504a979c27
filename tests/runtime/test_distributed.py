"""Several processes compute what one computes: real ones, over gloo, on the CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from support import make_task

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.cli import main
from remembering.config import Settings
from remembering.inference.token_cache import TokenCache
from remembering.learning.training import TrainingSet, train
from remembering.runtime.distributed import Distributed
from remembering.runtime.progress import Progress
from remembering.runtime.seeding import generator

TWO = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
EXPERIMENT = """
description = "Digits in three tasks, the last of which is fused with another."
backbone = "bundled"
units = ["sample", "task"]
baselines = ["ncm"]

[stream]
source = "digits"
sizes = [2, 3, 2]
per_class = 27
test_per_class = 30

[learning]
epochs = 2
batch_size = 17
capacity = 2
memory = 25
lr = 3e-3
"""
PAPER = """
adapters = "task"
augment = "none"
classifier.kind = "head"
router.kind = "subspace"
"""


def start_two(script: str, folder: Path, **environment: str) -> list[subprocess.Popen[str]]:
    """Start two processes without a launcher, which would end both if one fails."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    at = {**TWO, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **environment}
    return [
        subprocess.Popen(
            [sys.executable, str(path)],
            env={**at, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]


def wait(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Return the exit code and the messages of each process."""
    try:
        completed = [process.communicate(timeout=60)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, text) for p, text in zip(processes, completed, strict=True)]


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what tensorboard recorded, by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "logs" / "small"))
    events.Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("configuration", "trained"), [("", 1), (PAPER, 3)], ids=["default", "paper"]
)
def test_two_processes_do_what_one_does(configuration: str, trained: int, tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(EXPERIMENT + configuration)
    run = ["-m", "remembering", "run", str(file), "--tracker", "tensorboard", "--out"]
    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run([sys.executable, *run, str(one)], check=True, env=TWO, capture_output=True)
    completed = subprocess.run([*TORCHRUN, *run, str(two)], env=TWO, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("written to") == 1, "only the main process prints"

    alone, shared = scalars(one), scalars(two)
    assert alone.keys() == shared.keys()
    assert len([name for name in alone if name.startswith("loss/")]) == trained
    assert {"accuracy/sample", "accuracy/task", "routing accuracy/task"} < alone.keys()
    for name, points in alone.items():
        assert [step for step, _ in points] == [step for step, _ in shared[name]], name
        for (_, a), (_, b) in zip(points, shared[name], strict=True):
            assert a == pytest.approx(b, abs=1e-4), name
    first, second = (json.loads((out / "results.json").read_text()) for out in (one, two))
    assert (first["environment"]["processes"], second["environment"]["processes"]) == (1, 2)
    for key in ("tasks", "units", "footprint", "data_sha256"):
        assert first[key] == second[key], key
    a, b = (result["routing"]["router"] for result in (first, second))
    for row, other in zip(a["scores"], b["scores"], strict=True):
        assert row == pytest.approx(other, rel=1e-4)
    baseline = Path("baselines", "ncm", "results.json")
    first, second = (json.loads((out / baseline).read_text()) for out in (one, two))
    assert first["units"] == second["units"]
    names = {path.name for path in two.iterdir()}
    assert names == {"config.toml", "model", "results.json", "baselines", "logs"}


@pytest.mark.reliability
def test_shares_are_put_together(tmp_path: Path) -> None:
    script = """
        import torch
        from remembering.runtime.distributed import current, launched
        from remembering.errors import RememberingError

        with launched() as distributed:
            assert current() is distributed
            assert (distributed.processes, distributed.accumulation_steps) == (2, 3)
            assert distributed.about() == {"processes": 2, "mixed_precision": "bf16"}
            with distributed.autocast():
                assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
            for count in (1, 2, 5, 7):  # one process gets more than the other, or all
                index = torch.arange(count) * 10
                rows = distributed.rows(index.split(1), lambda i: torch.stack([i, -i], 1).double())
                assert rows.tolist() == [[10.0 * i, -10.0 * i] for i in range(count)]
                own = distributed.split(index)
                assert len(own) <= 3
                here = torch.cat(own) if own else index[:0]
                assert distributed.all_gather(here).tolist() == index.tolist()
            assert distributed.all_reduce(torch.tensor([1.0 + distributed.rank])).tolist() == [3.0]
            used, unused = torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)
            if distributed.main:  # the other had no images in this step
                (2 * used.sum()).backward()
            loss = torch.tensor(1.0 - distributed.rank)
            loss = distributed.reduce_gradients([used, unused], loss)
            assert loss.item() == 1.0
            assert (used.grad.tolist(), unused.grad.tolist()) == ([2.0, 2.0], [0.0])
            mine = torch.full((3,), float(distributed.rank))
            distributed.broadcast([mine])
            assert mine.tolist() == [0.0] * 3
            assert distributed.on_main(lambda: distributed.rank) == 0
            try:
                distributed.on_main(lambda: 1 / 0)
            except ZeroDivisionError:
                assert distributed.main
            except SystemExit as end:
                assert end.code == 1 and not distributed.main, "the main process reports the reason"
            assert distributed.agree(5, "number") == 5
            try:
                distributed.agree(distributed.rank, "number")
                assert distributed.main
            except RememberingError as error:
                assert "process 1 finds another number" in str(error)
        assert current() is not distributed and not torch.distributed.is_initialized()
    """
    options = {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "3",
    }
    for code, completed in wait(start_two(script, tmp_path, **options)):
        assert code == 0, completed


@pytest.mark.reliability
def test_no_process_waits_for_one_that_died(tmp_path: Path) -> None:
    script = """
        import os, torch
        from remembering.runtime.distributed import launched

        with launched() as distributed:
            distributed.all_reduce(torch.ones(1))
            if distributed.main:
                os.kill(os.getpid(), 9)
            distributed.all_reduce(torch.ones(1))
    """
    (killed, _), (code, completed) = wait(start_two(script, tmp_path))
    assert (killed, code) == (-9, 1)
    assert "another process has ended, so this one ends, too" in completed


class Losses(Progress):
    def __init__(self) -> None:
        self.values: list[float] = []

    def log(self, values: Any, step: int) -> None:
        self.values += values.values()


def learn(backbone: Backbone, distributed: Distributed) -> tuple[list[float], Adapter]:
    settings, task = Settings(epochs=4, batch_size=5), make_task()
    adapter = Adapter.new(backbone, 2, 0, generator(0, "adapter"))
    training_set = TrainingSet(TokenCache(backbone, task.images, 0), task.targets, "task", 0)
    losses = Losses()
    head = Head.linear(task.classes, backbone)
    trained, _ = train(
        backbone, adapter, head, training_set, settings, progress=losses, distributed=distributed
    )
    return losses.values, trained


@pytest.mark.unit
def test_gradients_accumulate_to_those_of_the_batch(backbone: Backbone) -> None:
    distributed = Distributed()
    distributed.accumulation_steps = 3
    losses, adapter = learn(backbone, Distributed())
    in_parts, same = learn(backbone, distributed)
    assert len(losses) == 12
    assert losses == pytest.approx(in_parts, abs=1e-5)
    assert torch.allclose(adapter.b, same.b, atol=1e-5)


@pytest.mark.unit
def test_training_in_mixed_precision(backbone: Backbone) -> None:
    class Bfloat16(Distributed):
        def autocast(self) -> Any:
            return torch.autocast("cpu", torch.bfloat16)

    losses, _ = learn(backbone, Distributed())
    rounded, half = learn(backbone, Bfloat16())
    assert losses != rounded
    assert losses == pytest.approx(rounded, abs=0.05)
    assert half.a.dtype is torch.float32


def fails(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> None:
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in words:
        assert word in error


@pytest.mark.unit
def test_other_commands_refuse_several_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    fails(capsys, ["compare", "digits-5"], "remember compare works in one process", "remember run")


@pytest.mark.unit
def test_trackers_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", lambda: [])
    run = ["run", "digits-5", "--out", str(tmp_path / "run"), "--tracker"]
    fails(capsys, [*run, "abacus"], "no tracker 'abacus'", "tensorboard")
    fails(capsys, [*run, "wandb"], "'wandb' is not installed", "pip install wandb")
    assert not (tmp_path / "run").exists()
