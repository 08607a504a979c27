"""The code blocks of README and docs are run as printed, offline, on a folder of photos.

Checkpoints of the hub are replaced by small random ones of the same name. A block that cannot be
run has a comment `<!-- not run: reason -->` before it; these tests skip with the reason.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from remembering.cli import main

from .pages import GENERATED, PAGES, Block, blocks

pytestmark = pytest.mark.integration
WRITTEN = [page for page in PAGES if page not in GENERATED]
SETUP = {
    "README.md": """
import datasets, torch
images = torch.randint(0, 256, (24, 3, 32, 32), dtype=torch.uint8)
images[::2] //= 4
labels = ["bolt", "nut"] * 12
camera_ids = [0, 1] * 12
files = [f"photos/tools/{name}/{i}.jpg" for name in ("saw", "hammer") for i in (1, 2, 3)]
dataset = datasets.Dataset.from_dict({"image": files, "label": ["saw"] * 3 + ["hammer"] * 3})
""",
    "docs/photos.md": """
import pandas, torch
frame = pandas.read_csv("stream.csv")
MEAN, STD = [0.5, 0.5, 0.5], [0.25, 0.25, 0.25]
batch = (torch.rand(4, 3, 32, 32) - 0.5) / 0.25
loader = torch.utils.data.DataLoader(list(zip(batch, ["rose", "tulip"] * 2)), batch_size=2)
""",
}
"""What the user of a page has: names that its Python blocks use without defining them."""


def pages_with(language: str) -> list[str]:
    return [page for page in WRITTEN if any(_runs(b, language) for b in blocks(page))]


def _runs(block: Block, language: str) -> bool:
    return block.language == language and block.not_run is None


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks(page: str, workspace: Path) -> None:
    """The blocks of a page run one after another."""
    names: dict[str, object] = {"__name__": "__main__"}
    exec(SETUP.get(page, ""), names)
    for block in blocks(page):
        if _runs(block, "python"):
            lines = "\n" * (block.line - 1)  # tracebacks show the lines of the page
            exec(compile(lines + block.code, block.page, "exec"), names)


@pytest.mark.parametrize("page", pages_with("sh"))
def test_commands(page: str, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of a page run one after another, and print what the page shows."""
    printed = ""
    for block in blocks(page):
        if _runs(block, "sh"):
            for line in block.code.splitlines():
                _, *arguments = shlex.split(line, comments=True)
                assert main(arguments) == 0, f"{block}: {line}\n{capsys.readouterr().err}"
            printed = "".join(capsys.readouterr())
            continue
        if block.language == "text" and printed:
            missing = _masked(block.code) - _masked(printed)
            assert not missing, f"{block} shows lines that its command does not print"
        printed = ""


def _masked(text: str) -> set[str]:
    """Return the lines of a text without numbers, quoted names and spacing."""
    plain = re.sub(r"'[^']*'", "''", text).replace("not flagged", "flagged")
    plain = re.sub(r"\d[\d.,]*(e-\d+)?", "#", plain)
    plain = re.sub(r"# (s|min)\b", "# s", plain)  # durations
    plain = re.sub(r"(, '' \(# %\))+", "", plain)  # a list of candidates
    lines = (" ".join(line.replace("─", "").split()) for line in plain.splitlines())
    return {line for line in lines if line}


@pytest.mark.unit
@pytest.mark.parametrize("page", WRITTEN)
def test_every_block_is_run_or_has_a_reason(page: str) -> None:
    for block in blocks(page):
        known = ("python", "sh", "text", "{eval-rst}")
        assert block.language in known, f"{block} has no language; name one of {known}"
        if _runs(block, "sh"):
            others = [line for line in block.code.splitlines() if not line.startswith("remember ")]
            assert not others, f"{block} cannot be run; add <!-- not run: reason -->"


@pytest.mark.unit
@pytest.mark.parametrize(
    "block", [b for page in WRITTEN for b in blocks(page) if b.not_run is not None], ids=str
)
def test_blocks_that_are_not_run(block: Block) -> None:
    if block.language == "python":
        compile(block.code, block.page, "exec")
    pytest.skip(f"{block.not_run}")
