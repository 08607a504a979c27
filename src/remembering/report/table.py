"""A table of text, shown in a terminal, in Markdown and in HTML; and formats of its cells."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from rich import box
from rich import table as rich_table
from rich.text import Text

from remembering.experiments.published import Published
from remembering.report.groups import Statistic, count

NOTHING = "–"
BREAK = "\u2028"
"""Begins a new line in a cell."""


@dataclass(frozen=True)
class Table:
    """A caption, headers, rows of text whose first cell names the row, and a note."""

    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def to_rich(self, columns: int | None = None) -> rich_table.Table:
        """Return the table for a terminal; numbers and words of headers are not broken.

        Args:
            columns: Show only the first columns.
        """
        shown = rich_table.Table(
            title=Text(self.caption, style="bold"),
            caption=Text(self.note) if self.note else None,
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
        )
        for i, header in enumerate(self.headers[:columns]):
            numeric = i > 0 and self._is_numeric(i)
            whole = [row[i] for row in self.rows] if numeric else []
            shown.add_column(
                Text(header),
                justify="right" if numeric else "left",
                overflow="fold",
                min_width=max(map(len, [*whole, *header.split()])),
            )
        for row in self.rows:
            shown.add_row(*(Text(cell.replace(BREAK, "\n")) for cell in row[:columns]))
        return shown

    def to_markdown(self) -> str:
        """Return a Markdown pipe table, with the caption above and the note below."""
        rule = [
            "---:" if i > 0 and self._is_numeric(i) else "---" for i in range(len(self.headers))
        ]
        lines = [list(map(_markdown_cell, row)) for row in (self.headers, *self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])
        note = f"\n\n{markdown_text(self.note)}" if self.note else ""
        return f"**{markdown_text(self.caption)}**\n\n{table}{note}\n"

    def to_html(self) -> str:
        """Return an HTML table with caption and scopes for screen readers; all text is escaped."""
        caption = html.escape(self.caption)
        number = [
            ' class="number"' if self._is_numeric(i) else "" for i in range(len(self.headers))
        ]
        head = "".join(
            f'<th scope="col"{kind}>{html.escape(header)}</th>'
            for kind, header in zip(["", *number[1:]], self.headers, strict=True)
        )
        body = "".join(
            f'<tr><th scope="row">{html.escape(row[0])}</th>'
            + "".join(
                f"<td{kind}>{_html_cell(cell)}</td>"
                for kind, cell in zip(number[1:], row[1:], strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        wide = ' class="wide"' if len(self.headers) > 8 else ""
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        return (
            f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}">'
            f"<table{wide}><caption>{caption}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
        )

    def _is_numeric(self, column: int) -> bool:
        """Return whether a column contains numbers, which are right-aligned."""
        cells = [row[column] for row in self.rows]
        return all(cell == NOTHING or re.match(r"(\w+: )?[-−+]?\d", cell) for cell in cells)

    def without_empty_columns(self) -> Table:
        """Return the table without columns in which all cells are empty."""
        used = [
            i
            for i in range(len(self.headers))
            if i == 0 or any(row[i] != NOTHING for row in self.rows)
        ]
        return Table(
            self.caption,
            tuple(self.headers[i] for i in used),
            tuple(tuple(row[i] for i in used) for row in self.rows),
            self.note,
        )


def _markdown_cell(text: str) -> str:
    """Return a cell; where it has several lines, a number and its unit stay on one of them."""
    lines = [markdown_text(line) for line in text.split(BREAK)]
    if len(lines) > 1:
        lines = [re.sub(r"(?<=\d) (?=\w)|(?<=±) ", "&nbsp;", line) for line in lines]
    return "<br>".join(lines)


def _html_cell(text: str) -> str:
    return html.escape(text).replace(" ± ", "&nbsp;±&nbsp;").replace(BREAK, "<br>")


def percent(value: Statistic | None, seeds: int) -> str:
    """Return a percentage with one decimal, ± the deviation.

    Args:
        value: A fraction.
        seeds: Number of seeds; a value that some of them lack says so.
    """
    if value is None:
        return NOTHING
    text = f"{100 * value.mean:.1f}".replace("-0.0", "0.0")
    text += "" if value.deviation is None else f" ± {100 * value.deviation:.1f}"
    return text + (f" ({value.n} of {count(seeds, 'seed')})" if value.n < seeds else "")


def points(value: Statistic | None) -> str:
    """Return a difference of accuracies in points with its sign, ± the deviation.

    >>> points(Statistic(-0.035, 0.002, 3)), points(Statistic(0.01, None, 1))
    ('−3.5 ± 0.2', '+1.0')
    """
    if value is None:
        return NOTHING
    text = f"{100 * value.mean:+.1f}".replace("-0.0", "+0.0").replace("-", "−")
    return text + ("" if value.deviation is None else f" ± {100 * value.deviation:.1f}")


def published_text(published: Published | None, *, source: bool = False) -> str:
    """Return a number of the paper in the paper's own precision, with its table if `source`."""
    if published is None:
        return NOTHING
    where = f" ({published.where})" if source else ""
    return f"{published.accuracy} ± {published.deviation}{where}"


def size(parameters: float) -> str:
    """Return a number of parameters, abbreviated.

    >>> size(512), size(73_728), size(368_640)
    ('512', '73.7k', '0.37M')
    """
    if parameters < 10_000:
        return f"{parameters:,.0f}"
    return f"{parameters / 1e3:.1f}k" if parameters < 100_000 else f"{parameters / 1e6:.2f}M"


def bytes_text(number: float) -> str:
    """Return a number of bytes, abbreviated.

    >>> bytes_text(512), bytes_text(40_744), bytes_text(16_928_000)
    ('512 B', '40.7 kB', '16.9 MB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number:.0f} B"


def number_text(value: float) -> str:
    """Return an option's value with all its digits.

    >>> number_text(100000.0), number_text(0.1)
    ('100000', '0.1')
    """
    return str(value).removesuffix(".0")


def markdown_text(text: str) -> str:
    """Escape text for one line of Markdown."""
    line = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]<>|#&~])", r"\\\1", line)
