"""Build the documentation site: `make docs`, or `python scripts/site.py --out site`.

Sphinx builds the site from a folder that is assembled here: the Markdown files of docs/, the README
and the other documents of the repository's root, the notebooks, and a reference of the command line
that is made from its options. Links between files are written as they work in the repository; here
they become links between pages. Broken links and other warnings are errors.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import importlib
import inspect
import json
import posixpath
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docstring_parser import parse
from sphinx.cmd.build import build_main

from remembering.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
NAVIGATION = {
    "Get started": {
        "Your own photos": "photos",
        "Backbone, images, time": "planning",
        "Notebook: your own photos": "notebooks/photos",
        "Concepts and glossary": "concepts",
        "Questions and answers": "faq",
    },
    "How to": {
        "Learn from a stream": "howto/streams",
        "Find unknown images": "howto/unknown",
        "Add, rename, forget, undo": "howto/editing",
        "Limit the number of adapters": "howto/capacity",
        "Consolidate shared adapters": "howto/consolidation",
        "Benchmark your own method": "notebooks/benchmark",
        "Use several GPUs or processes": "scaling",
        "Serve over HTTP": "serving",
        "Export to ONNX": "export",
        "Use the browser UI": "ui",
    },
    "Reference": {
        "Python": "api",
        "Command line": "commands",
        "Backbones": "backbones",
        "Routing and classification": "routing",
        "Experiments": "experiments",
    },
    "Evidence": {
        "Results": "results",
        "Fidelity to the paper": "fidelity",
        "Baselines": "baselines",
        "Performance": "performance",
        "Reliability": "reliability",
        "Security": "security",
    },
    "Project": {
        "Architecture": "architecture",
        "Add a router, a baseline, data": "adding",
        "Contributing": "contributing",
        "Changes": "changelog",
    },
}
FRAGMENTS = ("results-intro.md",)  # parts of other pages
_LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()\s#]+)(#[^()\s]*)?\)")


def build(out: Path) -> int:
    """Build the site in a folder, and return the exit code of Sphinx."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        assemble(source)
        options = ["--fail-on-warning", "--keep-going", "--quiet", "--conf-dir", str(ROOT / "docs")]
        doctrees = ["--doctree-dir", str(source / ".doctrees")]
        return build_main([*options, *doctrees, str(source), str(out)])


def assemble(folder: Path) -> None:
    """Write the sources of all pages to a folder."""
    pages: dict[str, str | bytes] = {"commands.md": commands_page()}
    for document, page in DOCUMENTS.items():
        pages[page] = site_links((ROOT / document).read_text(), document, page)
    pages["index.md"] = f"{pages['index.md']}\n{_toctrees()}"
    for path in sorted((ROOT / "docs").rglob("*")):
        name = path.relative_to(ROOT / "docs").as_posix()
        if path.suffix == ".md" and name not in FRAGMENTS:
            pages[name] = site_links(path.read_text(), f"docs/{name}", name)
        elif path.suffix == ".ipynb":
            pages |= notebook_page(path, name)
        elif path.suffix in (".png", ".svg"):
            pages[name] = path.read_bytes()
    for name, content in pages.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)


def site_links(markdown: str, source: str, page: str) -> str:
    """Rewrite the links of a file of the repository for its page of the site.

    Links to files that are not part of the site are removed; their text remains.
    """

    def rewritten(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if "://" in target or not (ROOT / file).exists():
            return match[0]  # another site, a page that is made here, or an error that Sphinx finds
        if file in DOCUMENTS:
            path = DOCUMENTS[file]
        elif file.startswith("docs/"):
            path = re.sub(r"\.ipynb$", ".md", file.removeprefix("docs/"))
        else:
            return text
        relative = posixpath.relpath(path, posixpath.dirname(page) or ".")
        return f"{mark}[{text}]({relative}{anchor or ''})"

    return _LINK.sub(rewritten, markdown)


def notebook_page(notebook: Path, name: str) -> dict[str, str | bytes]:
    """Return the page of a notebook with its outputs, and the files of its plots."""
    stem = name.removesuffix(".ipynb")
    plots: dict[str, str | bytes] = {}
    parts: list[str] = []
    for cell in json.loads(notebook.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(site_links(source, f"docs/{name}", f"{stem}.md"))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                file = f"{stem}-{len(plots) + 1}.png"
                plots[file] = base64.b64decode(data["image/png"])
                parts.append(f"![Output of the cell above]({posixpath.basename(file)})")
            else:
                text = "".join(output.get("text") or data["text/plain"])
                parts.append(f"```text\n{text.rstrip()}\n```")
    return {f"{stem}.md": "\n\n".join(parts), **plots}


def commands_page() -> str:
    """Return the reference of the command line, made from the options of each command."""
    lines = ["# Command line", "", "`remember COMMAND --help` shows the same texts.", ""]
    return "\n".join([*lines, *(line for command in COMMANDS for line in _command(command))])


def _command(command: str) -> Iterator[str]:
    module = importlib.import_module(f"remembering.cli.{command}")
    options = getattr(module, command.capitalize())
    documentation = inspect.cleandoc(options.__doc__)
    texts = {
        part.arg_name: " ".join((part.description or "").split())
        for part in parse(documentation).params
    }
    fields = {item.name: item for item in dataclasses.fields(options)}
    positional = [item for item in fields.values() if "Positional[" in str(item.type)]
    yield from (f"## {command}", "", documentation.partition("\n\nAttributes:")[0], "")
    usage = ["remember", command, *map(_usage, positional), "[OPTIONS]"]
    yield from ("```text", " ".join(usage), "```", "")
    for name, text in texts.items():
        option = f"--{name.replace('_', '-')}"
        shown = name.upper() if fields[name] in positional else option
        yield f"- `{shown}`{_default(fields[name].default)}: {text}"
    if fields.keys() - texts.keys():
        yield "- Further options are those of `--help-all`, such as `--rank` and `--router.kind`."
    yield ""


def _usage(item: dataclasses.Field[Any]) -> str:
    name = item.name.upper()
    return name if item.default is dataclasses.MISSING else f"[{name}]"


def _default(value: object) -> str:
    unset = value is dataclasses.MISSING or value in (None, False, "", ())
    return "" if unset else f" (default `{value}`)"


def _toctrees() -> str:
    parts = []
    for caption, pages in NAVIGATION.items():
        entries = "\n".join(f"{title} <{page}>" for title, page in pages.items())
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n")
    return "\n".join(parts)


def main() -> int:
    """Build the site and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="folder of the site")
    out: Path = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    if code := build(out):
        return code
    print(f"open {out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
