"""`remember compare`: its table, the command that reproduces it, and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from remembering.cli import main
from remembering.experiments.methods import METHODS
from remembering.report.collect import collect

TOML = """
description = "Digits in two tasks."
[stream]
tasks = 2
per_class = 8
test_per_class = 5
[learning]
epochs = 1
batch_size = 16
[learning.router]
epochs = 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(TOML)
    return path


def test_prints_a_table_and_reports(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["compare", str(file), "--methods", "ncm,slda", "--seeds", "0,1", "--out", str(out)]
    assert main([*words, "--options", "slda.shrinkage=0.01"]) == 0
    shown = capsys.readouterr()
    assert "nearest class mean (SimpleCIL)" in shown.out
    assert "ncm, seed 0: " in shown.err
    assert "4 of 4" in shown.err
    assert collect([out])[1][0].command == (
        "remember compare PATH/two.toml --methods ncm,slda --options slda.shrinkage=0.01 "
        "--seeds 0,1"
    )
    assert main(["report", str(out), "--out", str(tmp_path / "page")]) == 0
    assert (tmp_path / "page" / "compare-two-bundled-cost.png").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "ewx"], "did you mean 'ewc'"),
        (["--methods", "EWC"], "did you mean 'ewc'"),
        (["--data", "elsewhere"], "not read from elsewhere; leave out --data"),
        (["--image-size", "0"], "0"),
        (["--options", "ewc.strength=-5"], "ewc.strength = -5 must be a finite number, 0 or"),
        (["--methods", "nothing-like-it"], "known are ours"),
        (["--seeds", "a"], "not a list of whole numbers"),
        (["--seeds", ""], "--seeds is empty"),
        (["--small"], "has no [small] settings"),
        (["--options", "ewc=3"], "must be METHOD.OPTION=NUMBER"),
        (["--options", "ewx.strength=3"], "no method 'ewx'; did you mean 'ewc'"),
        (["--options", "ewc.strenght=3"], "'ewc' 'strenght'; did you mean 'strength'"),
        (["--options", "ewc.x=3"], "no option of 'ewc' 'x'; known are strength, images"),
        (["--options", "ours.rank=3"], "method 'ours' has no options"),
        (["--options", "ewc.strength=much"], "'much' is not a finite number"),
        (["--options", "ewc.strength=nan"], "'nan' is not a finite number"),
        (["--options", "ewc.images=1", "ewc.images=2"], "ewc.images twice"),
        (["--methods", "si", "--options", "ewc.images=1"], "not among the --methods"),
    ],
)
def test_mistakes(
    words: list[str], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No mistake leaves files that a corrected command would reject."""
    out = file.parent / "out"
    assert main(["compare", str(file), "--out", str(out), *words]) == 1
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_lists_the_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    assert any(line.endswith("nearest class mean (SimpleCIL)") for line in lines)
