"""The page in a real browser: it renders without messages, shows the numbers, fits a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from PIL import Image

from remembering.report.page import write_report

from .example import baselines, make_result, unit_result, write_run
from .test_page import HOSTILE, Document

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        BROWSER is None,
        reason="no chromium, chromium-browser or google-chrome on PATH; install one to run this",
    ),
]


def browse(file: Path, profile: Path, *options: str) -> tuple[str, list[str]]:
    """Open a file; returns the DOM (with --dump-dom) and what went to the console."""
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            "--virtual-time-budget=4000",
            "--enable-logging=stderr",
            "--v=0",
            *options,
            file.as_uri(),
        ],
        capture_output=True,
        timeout=180,
        check=True,
    )
    console = [line for line in done.stderr.decode().splitlines() if "CONSOLE" in line]
    return done.stdout.decode(), console


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("browser")
    for seed, accuracy in enumerate((0.5, 0.6, 0.7)):
        units = make_result().units | {"sample": unit_result([1.0] * 4 + [accuracy])}
        result = make_result(seed=seed, units=units)
        first, *others = result.tasks
        tasks = (replace(first, name=HOSTILE), *others)
        write_run(runs / f"{seed}", replace(result, tasks=tasks), *baselines(seed))
    return write_report([runs], runs / "out")


def test_renders_silently_with_the_numbers_of_the_results(page: Path, tmp_path: Path) -> None:
    dom, console = browse(page, tmp_path / "profile", "--dump-dom")
    assert console == []
    document = Document(dom)
    for number in ("60.0 ± 10.0", "87.0 ± 0.0", "95.0 ± 0.0", "97.0 ± 0.0", "19.8 ± 0.0"):
        assert number in document.text.replace("\u00a0", " ")
    assert document.tags["svg"] == document.tags["figure"] > 6
    assert document.tags["script"] == 0


def test_console_messages_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "loud.html"
    file.write_text("<script>console.error('heard')</script>", encoding="utf-8")
    _, console = browse(file, tmp_path / "profile", "--dump-dom")
    assert len(console) == 1
    assert "heard" in console[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_is_drawn_in_both_colour_schemes(page: Path, tmp_path: Path, scheme: str) -> None:
    shot = tmp_path / "shot.png"
    browse(
        page,
        tmp_path / "profile",
        f"--screenshot={shot}",
        "--window-size=1280,2400",
        f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
    )
    with Image.open(shot) as image:
        grey = image.convert("L")
        assert image.size == (1280, 2400)
        assert len(set(grey.tobytes())) > 100, "the page is blank"
        corner = grey.crop((0, 0, 1, 1)).tobytes()[0]
        assert (corner > 200) == (scheme == "light")


@pytest.mark.parametrize("width", [360, 390, 1280])
def test_only_tables_scroll_sideways(page: Path, tmp_path: Path, width: int) -> None:
    """Page and figures fit the screen, also where details are open."""
    frame = tmp_path / "frame.html"
    opened = page.read_text("utf-8").replace("<details>", "<details open>")
    measure = (
        "const root = this.contentDocument.documentElement;"
        "const figures = [...root.querySelectorAll('figure svg')]"
        ".map(f => f.getBoundingClientRect());"
        "document.title = ['width', root.scrollWidth, figures.length, "
        "Math.min(...figures.map(f => f.left)), Math.max(...figures.map(f => f.right))].join(' ')"
    )
    frame.write_text(
        f'<iframe style="width:{width}px;height:4000px;border:0" srcdoc="{escape(opened)}" '
        f'onload="{escape(measure)}"></iframe>',
        encoding="utf-8",
    )
    dom, _ = browse(frame, tmp_path / "profile", "--dump-dom", "--window-size=1400,4000")
    found = re.search(r"<title>width (\S+) (\S+) (\S+) (\S+)</title>", dom)
    assert found is not None
    whole, figures, left, right = map(float, found.groups())
    assert whole <= width
    assert figures > 6
    assert left >= 0
    assert right <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_figure_file_follows_the_colour_scheme(page: Path, tmp_path: Path, scheme: str) -> None:
    """As an image of a Markdown page, background and text change together."""
    (figure,) = page.parent.glob("*-accuracy.svg")
    frame, shot = tmp_path / "frame.html", tmp_path / "shot.png"
    frame.write_text(f'<body style="margin:0"><img src="{figure.as_uri()}">', encoding="utf-8")
    browse(
        frame,
        tmp_path / "profile",
        f"--screenshot={shot}",
        "--window-size=453,300",
        f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
    )
    with Image.open(shot) as image:
        shades = image.convert("L").tobytes()
    background = shades[0]
    assert (background > 200) == (scheme == "light")
    text = max(shades) if scheme == "dark" else min(shades)
    assert abs(text - background) > 150
