"""Text that is safe to print, to open in a spreadsheet, and to paste into a shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from remembering.cli.text import command_line, csv_cell, print_error
from remembering.runtime.text import printable

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Überfüllung 東京\u3000.png", "Überfüllung 東京\u3000.png"),
        ("👩\u200d🚀", "👩\u200d🚀"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("two\r\nlines\u2028", "two\\r\\nlines\\u2028"),
        ("gnp.\u202egpj", "gnp.\\u202egpj"),
        ("caf\udce9", "caf\\xe9"),
        ("\ud800", "\\ud800"),
    ],
)
def test_printable_escapes_what_a_terminal_would_execute(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_long_error_messages_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(f"model.json: unknown setting '{'z' * 10**6}'; remove it")
    err = capsys.readouterr().err
    assert len(err) < 2100
    assert err.startswith("error: model.json: unknown setting 'zz")
    assert err.endswith("z'; remove it\n")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_csv_cells_are_never_formulas(start: str) -> None:
    assert str(csv_cell(f"{start}1")).startswith("'")


@pytest.mark.parametrize("value", [-1, -0.5, True, "a=b"])
def test_other_csv_cells_are_unchanged(value: object) -> None:
    assert csv_cell(value) == value


def test_a_shell_reads_back_the_arguments_of_a_printed_command() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    arguments = ["a b", "$HOME", "it's", "new\nline", "caf\udce9'\\", "\x1b[31m"]
    line = command_line("learn", arguments)
    assert printable(line) == line
    assert line.startswith("remember learn 'a b'")
    code = f'remember() {{ printf "%s\\0" "$@"; }}; {line}'
    out = subprocess.run([bash, "-c", code], capture_output=True, check=True).stdout
    assert out.decode(errors="surrogateescape").split("\0") == ["learn", *arguments, ""]
