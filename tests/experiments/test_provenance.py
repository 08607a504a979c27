"""What results record of the command, and how options of methods are parsed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from remembering.experiments.methods import parse_options
from remembering.experiments.provenance import command_words, commit, portable_settings
from remembering.experiments.spec import Experiment, StreamSettings


def test_results_contain_no_paths_of_this_machine() -> None:
    stream = StreamSettings(source="/home/me/birds, mnist", data="../data")
    settings = portable_settings(Experiment(backbone="/home/me/vit", stream=stream))
    assert settings.backbone == "PATH/vit"
    assert (settings.stream.source, settings.stream.data) == ("PATH/birds,mnist", "PATH/data")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("x --seeds 0,1 --small", "run x --small"),
        ("x --resume --rank 8 --save-steps 3", "run x --rank 8"),
        ("x --save_steps=3 --out=/a/b --rank=8", "run x --rank=8"),
        ("--options ewc.strength=1 si.strength=2 --small", "run --small"),
        ("/a/x.toml --backbone=/models/vit --data ../y", "run PATH/x.toml --backbone=PATH/vit"),
    ],
)
def test_recorded_words_of_a_command(arguments: str, words: str) -> None:
    expected = (*words.split(), *(["--data", "PATH/y"] if "--data" in arguments else []))
    assert command_words("run", arguments.split()) == expected


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *names, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_the_code_is_recorded(tmp_path: Path) -> None:
    module = tmp_path / "package" / "part" / "module.py"
    module.parent.mkdir(parents=True)
    module.write_text("x = 1")
    assert commit.__wrapped__(module) is None, "no repository"
    git(tmp_path, "init")
    assert commit.__wrapped__(module) is None, "a repository that does not contain the module"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "a")
    head = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "notes.txt").write_text("outside of the package")
    assert commit.__wrapped__(module) == head
    module.write_text("x = 2")
    assert commit.__wrapped__(module) == f"{head}+changes"


def test_options_are_parsed() -> None:
    assert parse_options(["si.strength=1e2"], ["si"]) == {"si": {"strength": 100.0}}
