"""The files of the page: self-contained, and safe under a strict Content-Security-Policy."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

STATIC = Path(str(files("remembering.serving") / "static"))
SCRIPTS = sorted(STATIC.glob("js/*.js"))
TEXTS = sorted(file for file in STATIC.rglob("*") if file.is_file())


class Tags(HTMLParser):
    """Every tag with its attributes, and every text inside `script` and `style`."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.inline: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            self.inline.append(data)


@pytest.fixture(scope="module")
def index() -> Tags:
    return Tags((STATIC / "index.html").read_text("utf-8"))


def test_index_has_no_inline_scripts_or_styles(index: Tags) -> None:
    assert index.inline == [], "a script or style element has content"
    assert [tag for tag, _ in index.tags if tag == "style"] == []
    attributes = {name for _, values in index.tags for name in values}
    assert {name for name in attributes if name == "style" or name.startswith("on")} == set()


def test_files_named_by_index_exist(index: Tags) -> None:
    named = [
        value
        for _, values in index.tags
        for name, value in values.items()
        if name in ("src", "href") and not value.startswith("#")
    ]
    assert named, "index.html names no files"
    for value in named:
        assert (STATIC.parent / value).is_file(), f"{value} does not exist"


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_imports_resolve(file: Path) -> None:
    text = file.read_text("utf-8")
    for names, module in re.findall(r"import \{([^}]*)\} from \"(\./[^\"]+)\"", text):
        exported = (file.parent / module).read_text("utf-8")
        for name in filter(None, map(str.strip, names.split(","))):
            pattern = rf"export (?:async )?(?:function|const|class|let) {re.escape(name)}\b"
            assert re.search(pattern, exported), f"{module} does not export {name}"


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_nothing_refers_to_another_host(file: Path) -> None:
    addresses = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", file.read_text("utf-8"))
    assert set(addresses) <= {"http://www.w3.org"}, "only the SVG namespace may be an address"


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_no_markup_from_strings(file: Path) -> None:
    unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    assert re.findall(unsafe, file.read_text("utf-8")) == []
