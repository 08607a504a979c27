"""The pages of the documentation: their code blocks, inline code and links."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
GENERATED = ("docs/results.md",)  # from records; its commands are those of the runs
_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```(?P<language>\S*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    Attributes:
        page: The page.
        line: Line of its first line.
        language: Its language.
        code: Its text.
        not_run: Why it cannot be run, from the comment `<!-- not run: ... -->` before it.
    """

    page: str
    line: int
    language: str
    code: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def load_script(name: str) -> ModuleType:
    """Import a file of scripts/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page).read_text()


def blocks(page: str) -> list[Block]:
    """Return the code blocks of a page."""
    text = read(page)
    return [
        Block(
            page,
            text.count("\n", 0, match.start("code")) + 1,
            match["language"],
            match["code"],
            match["reason"],
        )
        for match in _FENCE.finditer(text)
    ]


def prose(page: str) -> str:
    """Return a page without its code blocks."""
    return _FENCE.sub("", read(page))


def inline_code(page: str) -> list[str]:
    """Return what is between backticks, on one line each."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(page))]


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading.

    >>> slug("ViT-B/16 with `10,000` tasks")
    'vit-b16-with-10000-tasks'
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: str) -> set[str]:
    """Return the anchors of the headings of a page."""
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)}
