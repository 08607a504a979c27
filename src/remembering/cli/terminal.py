"""Tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, JustifyMethod
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from remembering.runtime.text import printable

if TYPE_CHECKING:
    from remembering.report.table import Table


def stdout_console() -> Console:
    """Return a console for standard output, 160 columns wide if that is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 160)


def listing(headers: Sequence[str], numeric: Collection[str] = ()) -> RichTable:
    """Return an empty table in the style of all tables; long cells are broken, never cut.

    Args:
        headers: Header of each column.
        numeric: Headers of columns of numbers.
    """
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for header in headers:
        justify: JustifyMethod = "right" if header in numeric else "left"
        table.add_column(header, justify=justify, overflow="fold")
    return table


def cell(text: object) -> Text:
    """Return a cell of a table: no markup, control characters escaped."""
    return Text(printable(text))


def show(table: Table, elsewhere: str = "remember report") -> None:
    """Print a table with as many columns as there is room for, and which command shows the rest."""
    console = stdout_console()
    fitting = len(table.headers)
    while fitting > 2 and _width(console, table.to_rich(fitting)) > console.width:
        fitting -= 1
    console.print(table.to_rich(fitting))
    if fitting < len(table.headers):
        missing = ", ".join(table.headers[fitting:])
        console.print(Text(f"The terminal is too narrow for: {missing}; {elsewhere} shows them."))


def _width(console: Console, table: RichTable) -> int:
    """Return the width of the longest line of a table that is not truncated."""
    return max(map(Segment.get_line_length, Segment.split_lines(console.render(table))))
