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


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE or character in _JOINERS:
        return character
    if "\udc80" <= character <= "\udcff":  # a byte of a file name, see PEP 383
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
