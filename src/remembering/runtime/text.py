"""Text that is safe to print: file names, labels and task names may contain any character."""

from __future__ import annotations

import unicodedata

# Control and format characters (such as escape sequences and changes of the writing direction),
# lone surrogates (bytes that are not UTF-8), line and paragraph separators.
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # needed by some scripts and emoji


def printable(text: object) -> str:
    r"""Return text with control characters and undecodable bytes escaped, on one line.

    >>> printable("caf\udce9 \x1b[31m")
    'caf\\xe9 \\x1b[31m'
    """
    return "".join(_escaped(character) for character in str(text))


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it.

    >>> duration(7.13), duration(45), duration(150), duration(8000)
    ('7.1 s', '45 s', '2 min', '2.2 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE or character in _JOINERS:
        return character
    if "\udc80" <= character <= "\udcff":  # a byte of a file name, see PEP 383
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
