"""What the documentation refers to exists: files, anchors, commands, options, make targets."""

from __future__ import annotations

import inspect
import json
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pandas
import pytest

import remembering
from remembering.cli import COMMANDS, main

from .pages import PAGES, ROOT, anchors, blocks, inline_code, prose, read

pytestmark = pytest.mark.unit
NOTEBOOKS = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.ipynb"))
NOT_OURS = {  # the script of the paper's authors
    "cl_tasks.py",
    "main_lora_pretrained_AE_lowdim_consolidation_retraining.py",
    "moe_lora_customer_autoencoder.py",
}


def _markdown(page: str) -> str:
    if not page.endswith(".ipynb"):
        return prose(page)
    cells = json.loads(read(page))["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS])
def test_links_work_on_github(page: str) -> None:
    for target in re.findall(r"\]\(([^()\s]+)\)", _markdown(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        assert (ROOT / file).exists(), f"{page} links to {file}, which does not exist"
        if anchor:
            assert anchor in anchors(file), f"{page} links to {target}; {file} has no such heading"


@cache
def _options(command: str) -> frozenset[str]:
    """Return the options that `remember COMMAND --help-all` lists."""
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([command, "--help-all"])
    return frozenset(re.findall(r"--[a-z][\w.-]*", out.getvalue()))


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page: str) -> None:
    if page == "CHANGELOG.md":
        pytest.skip("the changelog also names what existed before")
    shell = [line for b in blocks(page) if b.language == "sh" for line in b.code.splitlines()]
    for line in [*inline_code(page), *shell]:
        found = re.match(r"remember (\w+)", line)
        if found is None:
            continue
        command = found[1]
        assert command in COMMANDS, f"{page}: {line}"
        for option in re.findall(r"(?<!\S)--[a-z][\w.-]*", line.partition("#")[0]):
            known = {"--help", "--help-all"} | _options(command)
            assert option in known, f"{page}: {line}: there is no {option}"


@pytest.mark.parametrize("page", PAGES)
def test_files_and_make_targets_exist(page: str) -> None:
    makefile = read("Makefile")
    text = prose(page) + "".join(block.code for block in blocks(page))
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}: make {target}"
    if page == "CHANGELOG.md":
        return
    names = re.findall(r"(?<![\w/-])((?:[\w-]+/)*[\w-]+\.py)\b", text)
    for name in {*names} - NOT_OURS:
        assert _find(name), f"{page} names {name}, which does not exist"


def _find(name: str) -> bool:
    folders = (ROOT, ROOT / "src" / "remembering", ROOT / "tests")
    return any((folder / name).exists() for folder in folders) or any(
        next(Path(folder).rglob(name), None) is not None for folder in folders[1:]
    )


def test_every_public_name_is_in_the_reference() -> None:
    documented = set(re.findall(r"^\.\. auto\w+:: remembering\.(\w+)$", read("docs/api.md"), re.M))
    assert {*remembering.__all__} - documented == set(), "add these names to docs/api.md"
    assert documented - {*remembering.__all__} == set(), "these names of docs/api.md do not exist"


def test_every_type_that_the_model_accepts_or_returns_is_exported() -> None:
    exported = {kind for name in remembering.__all__ for kind in _types(getattr(remembering, name))}
    for public in (remembering.RememberingTransformer, remembering.Prediction, remembering.Task):
        for name, method in inspect.getmembers(public, inspect.isroutine):
            if name.startswith("_") and name != "__init__":
                continue
            hints = get_type_hints(inspect.unwrap(method), None, {"pd": pandas})
            missing = {kind for hint in hints.values() for kind in _types(hint)} - exported
            assert missing == set(), f"{public.__name__}.{name} uses types that are not exported"


def _types(hint: Any) -> Iterator[type]:
    """Iterate over the classes of this package in a type hint."""
    for part in get_args(hint):
        yield from _types(part)
    if isinstance(hint, type) and hint.__module__.startswith("remembering."):
        yield hint
