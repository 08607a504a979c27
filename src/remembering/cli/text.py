"""Text that is safe to print: file names, labels and task names may contain any character."""

from __future__ import annotations

import os
import shlex
import sys
import unicodedata
from collections.abc import Sequence
from io import TextIOWrapper

# Control and format characters (such as escape sequences and changes of the writing direction),
# lone surrogates (bytes that are not UTF-8), line and paragraph separators.
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # needed by some scripts and emoji
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def printable(text: object) -> str:
    r"""Return text with control characters and undecodable bytes escaped, on one line.

    >>> printable("caf\udce9 \x1b[31m")
    'caf\\xe9 \\x1b[31m'
    """
    return "".join(_escaped(character) for character in str(text))


def csv_cell(value: object) -> object:
    """Return a cell of a CSV file that spreadsheets do not evaluate as a formula.

    >>> csv_cell("=1+1"), csv_cell(-1.5)
    ("'=1+1", -1.5)
    """
    if not isinstance(value, str):
        return value
    return ("'" if value.startswith(_FORMULA_STARTS) else "") + printable(value)


def counted(number: int, noun: str) -> str:
    """Return a number and its noun.

    >>> counted(1, "task"), counted(1200, "task")
    ('1 task', '1,200 tasks')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def command_line(command: str, arguments: Sequence[str]) -> str:
    """Return a command that can be pasted into a shell to run `remember` again."""
    if os.path.basename(sys.argv[0]) == "__main__.py":  # noqa: PTH119
        program = [sys.executable, "-m", "remembering"]
    else:
        program = ["remember"]
    return " ".join(_quoted(word) for word in (*program, command, *arguments))


def print_error(message: str) -> None:
    """Print an error message as one line on standard error."""
    print(f"error: {printable(message)}", file=sys.stderr)


def tolerate_any_text() -> None:
    """Escape characters that the encoding of the terminal lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE or character in _JOINERS:
        return character
    if "\udc80" <= character <= "\udcff":  # a byte of a file name, see PEP 383
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def _quoted(word: str) -> str:
    if printable(word) == word:
        return shlex.quote(word)
    # ANSI-C quoting of bash, zsh and ksh.
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in "'\\" else f"\\x{byte:02x}"
        for byte in os.fsencode(word)
    )
    return f"$'{escaped}'"
