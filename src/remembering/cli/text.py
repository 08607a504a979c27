"""What the commands print: errors, log messages, cells of CSV files, command lines."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from remembering.runtime.text import printable

_MAX_MESSAGE = 2000
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


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

    >>> counted(1, "task"), counted(1200, "task"), counted(2, "class")
    ('1 task', '1,200 tasks', '2 classes')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def command_line(command: str, arguments: Sequence[str]) -> str:
    """Return a command that can be pasted into a shell to run `remember` again."""
    if os.path.basename(sys.argv[0]) == "__main__.py":  # noqa: PTH119
        program = [sys.executable, "-m", "remembering"]
    else:
        program = ["remember"]
    return " ".join(_quoted(word) for word in (*program, command, *arguments))


def print_error(message: str) -> None:
    """Print an error message as one line on standard error.

    Names in it come from files and may be of any length: the middle of a long message is left out.
    """
    if len(message) > _MAX_MESSAGE:
        message = f"{message[: _MAX_MESSAGE // 2]} ... {message[-_MAX_MESSAGE // 2 :]}"
    print(f"error: {printable(message)}", file=sys.stderr)


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Show what the library logs: warnings with a prefix, information without."""
    logger, handler = logging.getLogger("remembering"), _StderrHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        print(f"{prefix}{printable(record.getMessage())}", file=sys.stderr)


def tolerate_any_text() -> None:
    """Escape characters that the encoding of the terminal lacks, instead of failing.

    Streams that were closed before the command started discard what is printed.
    """
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 (until the end)
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _quoted(word: str) -> str:
    if printable(word) == word:
        return shlex.quote(word)
    # ANSI-C quoting of bash, zsh and ksh.
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in "'\\" else f"\\x{byte:02x}"
        for byte in os.fsencode(word)
    )
    return f"$'{escaped}'"
