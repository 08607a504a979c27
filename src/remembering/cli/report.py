"""`remember report`: write an HTML page, or Markdown tables, of runs and comparisons."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import tyro

from remembering.cli.parsing import parse
from remembering.errors import RememberingError


@dataclass(frozen=True)
class Report:
    """Write an HTML page with tables and plots of runs and comparisons.

    Attributes:
        runs: Folders of runs or comparisons, or folders that contain them.
        out: Folder of the page.
        markdown: Write the tables to this Markdown file instead.
        intro: With --markdown: a Markdown file to begin with.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    out: Path = Path("report")
    markdown: Path | None = None
    intro: Path | None = None


def main(arguments: list[str]) -> int:
    """Run `remember report` and return its exit code."""
    options = parse(Report, arguments, "report")
    if not options.runs:
        raise RememberingError("name folders of runs or comparisons, such as remember report runs")
    if options.markdown:
        from remembering.report.markdown import results_markdown
        from remembering.runtime.files import write_atomic

        intro = options.intro.read_text() if options.intro else ""
        words = ["remember", "report", *map(str, options.runs), "--markdown", str(options.markdown)]
        words += ["--intro", str(options.intro)] if options.intro else []
        text = results_markdown(options.runs, intro=intro, command=shlex.join(words))
        write_atomic(options.markdown, text.encode())
        print(f"written to {options.markdown}")
        return 0
    from remembering.report.page import write_report

    print(f"written to {write_report(options.runs, options.out)}")
    return 0
