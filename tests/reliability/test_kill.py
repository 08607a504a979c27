"""A real process is killed at random moments, and ends with the bits it would have had."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from support import sized

from remembering.data.sources import load

pytestmark = pytest.mark.reliability
KILLS = sized(2, 12, 30)
OPTIONS = {
    "--save-steps": 1,
    "--per-class": 30,
    "--test-per-class": 5,
    "--epochs": 3,
    "--capacity": 3,
    "--memory": 20,
}
RUN = ["run", "digits-5", "--resume", *(str(x) for pair in OPTIONS.items() for x in pair)]


def command(out: Path) -> list[str]:
    return [sys.executable, "-m", "remembering", *RUN, "--baselines", "--out", str(out)]


def outcome(out: Path) -> dict[str, object]:
    """Every file of the model, and the results apart from times."""
    results = json.loads((out / "results.json").read_text())
    for key in ("seconds", "seconds_learning", "images_per_second"):
        results.pop(key)
    files = {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted((out / "model").rglob("*"))
        if path.is_file()
    }
    return {"results": results, **files}


def test_killed_anywhere_ends_with_the_same_bits(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    started = time.monotonic()
    subprocess.run(command(whole), check=True, env=environment, capture_output=True)
    duration = time.monotonic() - started
    rng = random.Random(0)
    killed = 0
    while killed < KILLS:
        started = time.monotonic()
        with subprocess.Popen(
            command(cut), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            try:
                # Start-up is most of a short run: aim behind it, where something is written.
                _, error = process.communicate(timeout=duration * rng.uniform(0.3, 0.9))
                assert process.returncode == 0, error
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
                continue
        # It got through: compare, and begin anew for the kills that are left, aiming earlier.
        assert outcome(cut) == outcome(whole)
        duration = min(duration, time.monotonic() - started)
        cut = tmp_path / f"cut after {killed}"
    subprocess.run(command(cut), check=True, env=environment, capture_output=True)
    assert outcome(cut) == outcome(whole)
    assert not list(cut.glob("progress*"))
    assert not (cut / ".lock").exists()


def test_a_killed_learn_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    digits = load("digits").train
    for i, (image, label) in enumerate(zip(digits.images[:60], digits.labels[:60], strict=True)):
        folder = tmp_path / "digits" / str(int(label))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(folder / f"{i}.png")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def learn(model: Path, *options: str) -> list[str]:
        options = (
            *options,
            "--epochs",
            "20",
            "--save-steps",
            "1",
        )
        program = [sys.executable, "-m", "remembering", "learn"]
        return [*program, str(model), str(tmp_path / "digits"), "--batch-size", "8", *options]

    started = time.monotonic()
    subprocess.run(learn(whole), check=True, env=environment, capture_output=True)
    duration = time.monotonic() - started
    rng = random.Random(1)
    killed = 0
    while killed < 4:
        started = time.monotonic()
        with subprocess.Popen(
            learn(cut, "--resume"), env=environment, stdout=subprocess.DEVNULL
        ) as process:
            try:
                process.wait(timeout=duration * rng.uniform(0.5, 0.8))
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
                continue
        if killed:
            break
        shutil.rmtree(cut)  # none was killed yet: anew, aiming earlier
        duration = min(duration, time.monotonic() - started)
    if not (cut / "manifest.json").exists():
        subprocess.run(learn(cut, "--resume"), check=True, env=environment, capture_output=True)
    one, two = (
        {path.relative_to(m): path.read_bytes() for path in m.rglob("*") if path.is_file()}
        for m in (whole, cut)
    )
    assert one == two
