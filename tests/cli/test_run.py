"""`remember run`, `demo` and `report`: wrong arguments, and a run that is interrupted."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remembering.cli import main

from .example import fails


@pytest.mark.unit
def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails(["run", "cifar11"], capsys, "no experiment 'cifar11'")
    fails(["run"], capsys, "name an experiment")
    fails(["run", "--seeds", "0,1", "digits-5"], capsys, "name an experiment first")
    fails(["run", "digits-5", "--first-layer", "99"], capsys, "first_layer = 99")
    fails(["run", "digits-5", "--capacity", "0"], capsys, "capacity = 0")
    fails(["run", "digits-5", "--seeds", "0,x"], capsys, "not a list of whole numbers")
    fails(["run", "digits-5", "--source", "nothing"], capsys, "nothing")
    fails(["run", "digits-5", "--baselines", "magic"], capsys, "no method 'magic'")
    fails(["run", "digits-5", "--backbone", "/none"], capsys, "no backbone folder")
    fails(["run", "digits-5", "--units", "crowd"], capsys, "'crowd' is unknown")
    fails(["report", tmp_path], capsys, "results.json")
    missing = ["report", tmp_path, "--markdown", tmp_path / "x", "--intro", tmp_path / "none"]
    fails(missing, capsys, "none: No such file")
    alone = ["report", tmp_path, "--figures", tmp_path]
    fails(alone, capsys, "--figures belong to a Markdown file")


@pytest.mark.unit
def test_a_folder_with_other_files_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    fails(["run", "digits-5", "--out", tmp_path], capsys, "is not empty")
    fails(["demo", "--out", tmp_path], capsys, "is not empty")
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.unit
def test_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--list"]) == 0
    assert "digits-5" in capsys.readouterr().out


@pytest.mark.reliability
def test_the_command_printed_after_ctrl_c_resumes_a_run(tmp_path: Path) -> None:
    """The resumed run has the results of an uninterrupted one."""
    options = ["--per-class", "20", "--epochs", "4", "--router.epochs", "5", "--baselines"]
    command = [sys.executable, "-m", "remembering", "run", "digits-5", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    with subprocess.Popen(
        [*command, "--out", str(cut)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # A shell that starts the tests in the background makes them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        deadline = time.monotonic() + 120
        while not (cut / "scores.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert not (cut / "results.json").exists()
    again = shlex.split(error.partition("Resume with: ")[2])
    subprocess.run(again, check=True, env=environment)
    subprocess.run([*command, "--out", str(whole)], check=True, env=environment)
    one, two = (json.loads((out / "results.json").read_text()) for out in (cut, whole))
    for key in ("seconds", "seconds_learning", "images_per_second"):
        one.pop(key), two.pop(key)
    assert one == two
