"""`remember report`: an HTML page or Markdown tables of runs and comparisons, and records."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import tyro

from remembering.cli.parsing import parse
from remembering.errors import RememberingError
from remembering.runtime.files import write_atomic


@dataclass(frozen=True)
class Report:
    """Write an HTML page with tables and plots of runs and comparisons.

    Attributes:
        runs: Folders of runs, comparisons or records, or folders that contain them.
        out: Folder of the page.
        markdown: Write the tables to this Markdown file instead.
        intro: With --markdown: a Markdown file to begin with.
        readme: Replace the tables in this Markdown file instead. They stand between the comments
            <!-- results:NAME --> and <!-- end -->.
        figures: With --markdown and --readme: folder of the figures that they show.
        record: Copy the results to this folder of records instead, compressed.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    out: Path = Path("report")
    markdown: Path | None = None
    intro: Path | None = None
    readme: Path | None = None
    figures: Path | None = None
    record: Path | None = None


def main(arguments: list[str]) -> int:
    """Run `remember report` and return its exit code."""
    options = parse(Report, arguments, "report")
    if not options.runs:
        raise RememberingError("name folders of runs or comparisons, such as remember report runs")
    if options.intro and not options.markdown:
        raise RememberingError("--intro begins a Markdown file; name it with --markdown")
    if options.figures and not (options.markdown or options.readme):
        raise RememberingError("--figures belong to a Markdown file; name it with --markdown")
    if options.record:
        from remembering.report.records import record

        changed = record(options.runs, options.record)
        for path in changed:
            print(f"recorded {path}")
        print(f"{len(changed)} new or changed records in {options.record}")
    files = _files(options, arguments)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
        print(f"written to {path}")
    if not options.record and not files:
        from remembering.report.page import write_report

        print(f"written to {write_report(options.runs, options.out)}")
    return 0


def _files(options: Report, arguments: list[str]) -> dict[Path, bytes]:
    """Return the Markdown files to write, and their figures."""
    from remembering.report.figure_files import Figures
    from remembering.report.markdown import results_markdown
    from remembering.report.readme import fill_readme

    files: dict[Path, bytes] = {}

    def figures(document: Path) -> Figures | None:
        return Figures(options.figures, document, files) if options.figures else None

    if options.markdown:
        intro = options.intro.read_text() if options.intro else ""
        command = shlex.join(["remember", "report", *arguments])
        text = results_markdown(
            options.runs, intro=intro, command=command, figures=figures(options.markdown)
        )
        files[options.markdown] = text.encode()
    if options.readme:
        text = fill_readme(options.readme.read_text(), options.runs, figures(options.readme))
        files[options.readme] = text.encode()
    return files
