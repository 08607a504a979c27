"""Dispatch: commands by name, exit codes, one line per error, a fast --help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from remembering import cli
from remembering.cli import COMMANDS, main
from remembering.errors import RememberingError

from .example import fails

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("train", "learn"),
        ("Fit", "learn"),
        ("classify", "predict"),
        ("lern", "learn"),
        ("eval", "evaluate"),
    ],
)
def test_an_unknown_command_is_answered_with_the_closest(
    name: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fails([name], capsys, f"no command '{name}'", f"did you mean 'remember {meant}'?")


def test_a_command_without_a_close_match_refers_to_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fails(["xyzzy"], capsys, "no command 'xyzzy'", "remember --help")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert all(f"  {name} " in out and text in out for name, text in COMMANDS.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_begins_with_its_line_in_the_list(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    out = capsys.readouterr().out
    assert out.startswith(f"usage: remember {name}")
    assert COMMANDS[name] in out


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)])
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


class _FileError(RememberingError, OSError):
    """As errors of the library about files."""


@pytest.mark.parametrize(
    ("error", "printed", "code"),
    [
        (RememberingError("the reason"), "error: the reason\n", 1),
        (_FileError("the reason"), "error: the reason\n", 1),
        (RememberingError("a\x1b[31m\nb"), "error: a\\x1b[31m\\nb\n", 1),
        (FileNotFoundError(2, "No such file", "x"), "error: x: No such file\n", 1),
        (OSError("out of something"), "error: out of something\n", 1),
        (KeyboardInterrupt(), "interrupted; everything saved before is intact\n", 130),
    ],
)
def test_errors_are_one_line_on_standard_error(
    error: BaseException,
    printed: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli.importlib, "import_module", lambda name: SimpleNamespace(main=fail))
    assert main(["learn"]) == code
    captured = capsys.readouterr()
    assert captured.err == printed
    assert captured.out == ""


def test_text_that_the_terminal_cannot_encode_is_escaped() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "remembering", "café\udcff"],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii:strict", "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        check=False,
    )
    assert done.returncode == 1
    assert rb"caf\xe9\xff" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_closed_stream_is_no_error(trained: Path) -> None:
    command = f'exec "{sys.executable}" -m remembering inspect "{trained / "model"}" >&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_reported_in_one_line() -> None:
    command = f'exec "{sys.executable}" -m remembering --help > /dev/full'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")
