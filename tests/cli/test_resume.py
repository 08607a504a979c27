"""Processes that are interrupted or killed while they learn a task; then the task is resumed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from remembering.cli import main
from remembering.storage.manifest import read_manifest

from .example import class_folder, files

pytestmark = pytest.mark.reliability

OPTIONS = {
    "--backbone": "bundled",
    "--epochs": 12,
    "--batch-size": 4,
    "--save-steps": 1,
    "--memory": 4,
    "--adapters": "task",
}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
PROGRAM = [sys.executable, "-m", "remembering"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Compute with one thread, as the processes do: sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def learn(model: Path, folder: Path, *options: str) -> list[str]:
    basic = [str(word) for pair in OPTIONS.items() for word in pair]
    return ["learn", str(model), str(folder), *basic, *options]


def stop(command: list[str], model: Path, signal_number: int) -> str:
    """Start a process, stop it as soon as it has saved progress, and return its messages."""
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        # A shell that starts the tests in the background makes them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        deadline = time.monotonic() + 60
        while not list(model.glob("progress*.safetensors")):
            assert process.poll() is None, "the process ended before it saved progress"
            assert time.monotonic() < deadline, "no progress was saved within a minute"
            time.sleep(0.005)
        process.send_signal(signal_number)
        _, error = process.communicate(timeout=60)
    expected = 130 if signal_number == signal.SIGINT else -signal_number
    assert process.returncode == expected, error
    return error


FUSED = ("--capacity", "1", "--memory", "8", "--classifier.kind", "head")


@pytest.mark.parametrize("options", [(), FUSED], ids=["no capacity", "capacity"])
def test_tasks_2_and_3_are_resumed_with_the_same_bits(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    folders = [
        class_folder(tmp_path / f"task {i}", (f"a{i}", f"b{i}"), seed=i, per_class=8)
        for i in range(3)
    ]
    whole, cut = tmp_path / "whole", tmp_path / "a model"
    assert main(learn(whole, folders[0], *options)) == 0
    shutil.copytree(whole, cut)
    for task in (1, 2):
        arguments = learn(cut, folders[task], *options)
        if task == 1:
            message = stop([*PROGRAM, *arguments], cut, signal.SIGINT)
            again = ["/bin/sh", "-c", message.partition("Resume with: ")[2]]
        else:
            stop([*PROGRAM, *arguments], cut, signal.SIGKILL)
            again = [*PROGRAM, *arguments, "--resume"]
        assert len(read_manifest(cut).tasks) == task, "the task was not interrupted"
        subprocess.run(again, check=True, env=ENVIRONMENT)
        assert main(learn(whole, folders[task], *options)) == 0
        assert files(cut) == files(whole)
