"""The command: every failure is one sentence and a non-zero exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from remembering.cli import main

FAST = ["--epochs", "1", "--router.kind", "subspace"]


def class_folder(folder: Path, classes: tuple[str, ...] = ("cat", "dog"), seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    for label in classes:
        (folder / label).mkdir(parents=True)
        for i in range(3):
            array = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(array).save(folder / label / f"{i}.png")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A model of one task."""
    folder = tmp_path / "model"
    assert main(["learn", str(folder), str(class_folder(tmp_path / "pets")), *FAST]) == 0
    assert "learned 'pets': 2 classes, 6 images" in capsys.readouterr().out
    return folder


def fails(arguments: list[object], capsys: pytest.CaptureFixture[str], *words: str) -> None:
    assert main([str(argument) for argument in arguments]) != 0
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1, "one sentence"
    for word in words:
        assert word in error


def test_learn_extends_a_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = class_folder(tmp_path / "birds", ("crow", "duck", "owl"), seed=1)
    assert main(["learn", str(model), str(more), "--name", "things with wings"]) == 0
    assert main(["inspect", str(model), "--json"]) == 0
    about = json.loads(capsys.readouterr().out.split("\n", 1)[1])
    assert [task["name"] for task in about["tasks"]] == ["pets", "things with wings"]
    assert about["tasks"][1]["classes"] == ["crow", "duck", "owl"]
    assert about["footprint"]["adapters"] > 0
    assert main(["inspect", str(model)]) == 0
    out = capsys.readouterr().out
    for word in ("things with wings", "crow, duck, owl", "footprint", "bundled"):
        assert word in out


def test_verify_and_forget(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = class_folder(tmp_path / "birds", ("crow", "duck"), seed=1)
    assert main(["learn", str(model), str(more)]) == 0
    assert main(["inspect", str(model), "--verify"]) == 0
    assert "files are as they were saved" in capsys.readouterr().out
    assert main(["forget", str(model), "pets"]) == 0
    assert "forgot 'pets'" in capsys.readouterr().out
    fails(["forget", model, "pets"], capsys, "no task 'pets'", "'birds'")
    weights = next(model.rglob("adapter_model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    fails(["inspect", model, "--verify"], capsys, "adapter_model.safetensors", "SHA-256")


def test_predict_prints_a_table_json_and_csv(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pets" / "cat"
    assert main(["predict", str(model), str(folder)]) == 0
    assert "0.png" in capsys.readouterr().out
    assert main(["predict", str(model), str(folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [Path(row["file"]).name for row in rows] == ["0.png", "1.png", "2.png"]
    assert {"label", "probability", "task", "adapter", "error"} <= rows[0].keys()
    assert main(["predict", str(model), str(folder / "1.png"), "--csv", "--together"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert table[0]["label"] in ("cat", "dog")


def test_predict_flags_what_is_unknown(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pets" / "cat"
    assert main(["predict", str(model), str(folder), "--unknown", "0.05", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(0 < row["novelty"] <= 1 for row in rows)
    assert all(row["unknown"] == (row["novelty"] <= 0.05) for row in rows)
    assert main(["predict", str(model), str(folder), "--together", "--unknown", "0.05"]) == 0
    assert "seen before?" in capsys.readouterr().out
    fails(["predict", model, folder, "--unknown", "2"], capsys, "between 0 and 1")


def test_predict_goes_on_past_bad_files_in_a_folder(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pets" / "cat"
    (folder / "bad.png").write_bytes(b"nothing")
    assert main(["predict", str(model), str(folder), "--json"]) == 0
    prediction = capsys.readouterr()
    assert len(json.loads(prediction.out)) == 3
    assert "skipped" in prediction.err
    assert "bad.png is not an image" in prediction.err
    assert main(["predict", str(model), str(folder / "bad.png"), str(folder / "0.png")]) == 1
    assert "bad.png is not an image" in capsys.readouterr().err


class TestWrongInput:
    def test_folders(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        model = tmp_path / "model"
        fails(["learn", model, tmp_path / "none"], capsys, "none is not a folder")
        (tmp_path / "empty").mkdir()
        fails(["learn", model, tmp_path / "empty"], capsys, "has no class folders")
        one = class_folder(tmp_path / "one", ("cat",))
        fails(["learn", model, one], capsys, "only the class 'cat'")
        few = class_folder(tmp_path / "few")
        for i in (1, 2):
            (few / "dog" / f"{i}.png").unlink()
        fails(["learn", model, few], capsys, "class 'dog'", "one image")
        assert not model.exists()

    def test_a_damaged_image_leaves_the_model_as_it_was(
        self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = files(model)
        bad = class_folder(tmp_path / "bad", ("x", "y"))
        (bad / "y" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        fails(["learn", model, bad], capsys, "y/1.png")
        fails(["learn", model, tmp_path / "pets"], capsys, "already learned")
        fails(["learn", model, bad, "--rank", "7"], capsys, "rank = 1", "cannot change")
        wider = ["learn", model, bad, "--router.latent", "3"]
        fails(wider, capsys, "router.latent = 1", "leave out --router.latent")
        fails(["learn", model, bad, "--image-size", "56"], capsys, "image_size = 28")
        assert files(model) == before

    def test_capacity_zero(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pets = class_folder(tmp_path / "pets")
        arguments = ["learn", tmp_path / "m", pets, "--capacity", "0"]
        fails(arguments, capsys, "capacity = 0 must be at least 1")
        fails(["run", "digits-5", "--capacity", "0"], capsys, "capacity = 0")

    def test_a_model_of_another_version(
        self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        manifest = model / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"version": 3', '"version": 99'))
        before = files(model)
        more = class_folder(tmp_path / "more", ("x", "y"))
        for arguments in (
            ["learn", model, more],
            ["predict", model, more / "x"],
            ["inspect", model],
        ):
            fails(arguments, capsys, "version 99")
        assert files(model) == before

    def test_unknown_things(
        self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fails(["run", "cifar11"], capsys, "no experiment 'cifar11'")
        fails(["run"], capsys, "name an experiment")
        fails(["run", "--seeds", "0,1", "digits-5"], capsys, "name an experiment first")
        fails(["run", "digits-5", "--first-layer", "99"], capsys, "first_layer = 99")
        fails(["predict", model, model, "--json", "--csv"], capsys, "exclude each other")
        fails(["report", model], capsys, "results.json")
        missing = ["report", tmp_path, "--markdown", tmp_path / "x", "--intro", tmp_path / "none"]
        fails(missing, capsys, "none: No such file")
        fails(["demo", "--out", tmp_path], capsys, "is not empty")
        fails(["fly"], capsys, "no command 'fly'")
        fails(["inspect", tmp_path], capsys, "holds no model")
        fails(["predict", model, tmp_path / "none.png"], capsys, "does not exist")
        fails(["predict", model, model], capsys, "no images in")
        fails(["run", "digits-5", "--seeds", "0,x"], capsys, "no list of whole numbers")
        fails(["run", "digits-5", "--source", "nothing"], capsys, "nothing")
        fails(["run", "digits-5", "--baselines", "magic"], capsys, "no baseline 'magic'")
        fails(["run", "digits-5", "--backbone", "/none"], capsys, "no backbone folder")
        fails(["run", "digits-5", "--units", "crowd"], capsys, "'crowd' is unknown")

    def test_a_folder_in_use_is_not_written_over(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        fails(["run", "digits-5", "--out", tmp_path], capsys, "is not empty")
        pets = class_folder(tmp_path / "x" / "pets")
        fails(["learn", tmp_path, pets], capsys, "is not empty and holds no model")
        assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "arguments",
    [[], ["demo"], ["run"], ["compare"], ["learn"], ["predict"], ["inspect"], ["report"]],
)
def test_help_needs_no_heavy_import(arguments: list[str]) -> None:
    code = (
        "import sys; from remembering.cli import main\n"
        f"try: main({[*arguments, '--help']!r})\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'datasets', 'matplotlib', 'sklearn', 'numpy'}\n"
        "assert not heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: remember" in done.stdout


def test_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--list"]) == 0
    assert "digits-5" in capsys.readouterr().out


@pytest.mark.slow
def test_interrupted_runs_say_how_to_go_on_and_do(tmp_path: Path) -> None:
    """Ctrl-C in a real process, then --resume: the same numbers as a run that was never stopped."""
    small = ["--per-class", "20", "--epochs", "4", "--router.epochs", "5", "--baselines"]
    command = [sys.executable, "-m", "remembering", "run", "digits-5", *small]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    with subprocess.Popen(
        [*command, "--out", str(cut)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # A shell that starts tests in the background has them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        deadline = time.monotonic() + 120
        while not (cut / "scores.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "go on with: remember run digits-5" in error
    assert "--resume" in error
    assert not (cut / "results.json").exists()
    for out, extra in ((cut, ["--resume"]), (whole, [])):
        subprocess.run([*command, "--out", str(out), *extra], check=True, env=environment)
    one, two = (json.loads((out / "results.json").read_text()) for out in (cut, whole))
    for key in ("seconds", "seconds_learning"):
        one.pop(key), two.pop(key)
    assert one == two
