"""The documentation site: it builds without warnings, needs no other host, and can be searched."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import remembering

from .pages import ROOT, load_script

pytestmark = pytest.mark.integration
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(
    BROWSER is None,
    reason="no chromium, chromium-browser or google-chrome on PATH; install one to run this",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; broken links and other warnings are errors."""
    out = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, str(ROOT / "scripts" / "build_site.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.unit
def test_links_between_files_become_links_between_pages() -> None:
    links = load_script("build_site").site_links
    text = "[a](../SECURITY.md#x) [b](ui.md) [c](notebooks/photos.ipynb) [d](../Dockerfile)"
    assert links(text, "docs/faq.md", "faq.md") == (
        "[a](security.md#x) [b](ui.md) [c](notebooks/photos.md) d"
    )
    assert links("[a](docs/ui.md)", "README.md", "index.md") == "[a](ui.md)"
    assert links("[a](../ui.md)", "docs/howto/x.md", "howto/x.md") == "[a](../ui.md)"
    assert links("[a](missing.md)", "README.md", "index.md") == "[a](missing.md)"


class _Resources(HTMLParser):
    """Addresses that a browser loads when it opens a page."""

    def __init__(self, text: str):
        super().__init__()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.loaded.append(named.get("src") or "")
        if tag == "link" and named.get("rel") != "canonical":
            self.loaded.append(named.get("href") or "")


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        for address in _Resources(page.read_text()).loaded:
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", style.read_text()), style


def test_the_reference_shows_docstrings_and_options(site: Path) -> None:
    page = (site / "api.html").read_text()
    for name in remembering.__all__:
        assert f'id="remembering.{name}"' in page, name
    assert "Answer images without knowing their task." in page
    assert 'id="remembering.RememberingTransformer.save"' in page, "inherited"
    commands = (site / "commands.html").read_text()
    assert "--false-alarm-rate" in commands
    assert "Flag images that resemble no learned task as unknown." in commands


def test_notebooks_are_pages_with_their_outputs(site: Path) -> None:
    page = (site / "notebooks" / "photos.html").read_text()
    assert "flagged as unknown" in page
    assert list(site.glob("_images/photos-*.png"))
    assert "photos.html" in (site / "index.html").read_text()
    assert ".ipynb" not in page


def _browse(address: str, profile: Path) -> tuple[str, list[str]]:
    """Open an address without network; return the DOM and what went to the console."""
    assert BROWSER is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += ["--no-first-run", "--disable-background-networking", "--disable-sync"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}"]
    options += ["--enable-logging=stderr", "--v=0", "--virtual-time-budget=8000", "--dump-dom"]
    command = [BROWSER, *options, address]
    done = subprocess.run(command, capture_output=True, timeout=300, check=True)
    console = [line for line in done.stderr.decode().splitlines() if "CONSOLE" in line]
    return done.stdout.decode(), console


@needs_browser
def test_search_works_from_disk(site: Path, tmp_path: Path) -> None:
    address = f"{(site / 'search.html').as_uri()}?q=consolidation"
    dom, console = _browse(address, tmp_path / "profile")
    assert "howto/consolidation.html" in dom
    # Excerpts next to the results need a server; nothing else is requested.
    assert [line for line in console if "ERR_NAME_NOT_RESOLVED" in line] == []


@needs_browser
def test_pages_open_silently_from_disk(site: Path, tmp_path: Path) -> None:
    dom, console = _browse((site / "api.html").as_uri(), tmp_path / "profile")
    assert "RememberingTransformer" in dom
    assert console == []
