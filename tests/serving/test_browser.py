"""The page in a real browser, on a real server: teach, ask, forget, reload.

Screenshots go to the folder of the test, or to the one that SCREENSHOTS names:

    SCREENSHOTS=docs/ui pytest tests/serving/test_browser.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest
from PIL import Image, ImageDraw, ImageFont

pytest.importorskip("selenium", reason="selenium is not installed; install the extra 'dev'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed; install the extra 'serve'")

from selenium.webdriver.common.keys import Keys

from .page import Page

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(
        BROWSER is None or DRIVER is None,
        reason="no Chromium and chromedriver on PATH; install both to run this",
    ),
]

COMMAND = "import sys; from remembering.cli import main; sys.exit(main())"
DRAWINGS = 14  # Of each digit: enough for p-values below 5 %.
LEARNING_SECONDS = 400


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of `remember play` with a model that has learned nothing."""
    folder = tmp_path_factory.mktemp("play") / "model"
    options = ["play", str(folder), "--no-browser", "--port", "0"]
    command = [sys.executable, "-c", COMMAND, *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = re.search(r"http://[^\s]+/", line)
        assert address, f"the server did not start: {line!r}"
        yield address[0]
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture
def page(url: str, tmp_path: Path) -> Iterator[Page]:
    assert BROWSER is not None
    assert DRIVER is not None
    page = Page(url, BROWSER, DRIVER, tmp_path / "profile")
    try:
        yield page
    finally:
        page.close()


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def letter(text: str, size: int = 88) -> Image.Image:
    """A white letter on black."""
    font = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    image = Image.new("L", (112, 112))
    draw = ImageDraw.Draw(image)
    draw.text((56, 56), text, fill=255, font=ImageFont.truetype(str(font), size), anchor="mm")
    return image


def photograph(page: Page, folder: Path, name: str) -> None:
    """Take screenshots at phone and desktop width, which the page must fit."""
    for width, height in ((390, 844), (1280, 900)):
        page.resize(width, height)
        assert page.overflow() == 0, f"{name} is wider than {width} px"
        page.screenshot(folder / f"{name}-{width}.png")


def teach_drawings(page: Page, digits: str) -> None:
    for position, digit in enumerate(digits):
        page.click(".add-tile button", "Add a class")
        page.driver.switch_to.active_element.send_keys(digit)
        page.driver.find_elements("css selector", ".class-card")[position].find_element(
            "xpath", ".//button[normalize-space()='Draw']"
        ).click()
        for count in range(1, DRAWINGS + 1):
            page.draw(digit)
            page.click("dialog button", "Add drawing")
            page.wait(lambda: f"{count} drawing" in page.text("dialog"), f"drawing {count}")  # noqa: B023
        page.click("dialog button", "Done")
        page.wait(lambda: page.find("dialog") is None, "the dialog to close")


def teach_samples(page: Page, labels: str) -> None:
    page.click(".add-tile button", "Built-in pictures")
    for label in labels:
        page.click("dialog .chip", label)
    page.click("dialog button", f"Add {len(labels)} classes")
    page.wait(lambda: page.find(".class-card"), "the classes")


def learn(page: Page, message: str = "I learned") -> None:
    page.click("button", "Learn")
    page.wait(lambda: page.find("[role=progressbar]"), "the progress bar")
    page.wait(lambda: message in page.text(".result"), "the end of learning", LEARNING_SECONDS)


def ask_drawing(page: Page, digit: str) -> str:
    page.reload()
    page.open("ask")
    page.draw(digit)
    return page.answer(f"the answer to a drawn {digit}")


def test_teach_ask_forget_and_reload(page: Page, url: str, screenshots: Path) -> None:
    page.open("teach")
    photograph(page, screenshots, "teach-empty")
    teach_drawings(page, "37")
    photograph(page, screenshots, "teach")
    learn(page)

    assert ask_drawing(page, "7").startswith("7\n")
    assert ask_drawing(page, "3").startswith("3\n")

    page.drop(letter("K"))
    page.wait(lambda: "New to me" in page.text(".verdict"), "the letter to be called new")
    photograph(page, screenshots, "ask-new")
    page.click("button", "Teach me this")
    page.wait(lambda: page.find(".class-card .thumbnail"), "the letter on the Teach page")
    page.driver.switch_to.active_element.send_keys("K")
    for count, size in enumerate((70, 78, 96), 2):
        page.paste(letter("K", size))
        page.wait(lambda: page.find(f"[aria-label='Remove picture {count} of K']"), "it")  # noqa: B023
    learn(page, "“3 and 7” is now 3, 7 and K")
    page.reload()
    page.open("ask")
    page.drop(letter("K", 84))
    assert page.answer("the answer to a letter").startswith("K\n"), "the class was not added"
    page.open("teach")

    teach_samples(page, "24")
    learn(page)
    assert ask_drawing(page, "7").startswith("7\n"), "the first task was forgotten"
    assert ask_drawing(page, "2").startswith("2\n"), "built-in digits do not help with drawn ones"
    photograph(page, screenshots, "ask")

    page.open("watch")
    page.wait(lambda: len(page.driver.find_elements("css selector", ".task")) == 2, "two tasks")
    photograph(page, screenshots, "watch")
    page.colors("dark")
    photograph(page, screenshots, "watch-dark")
    page.colors("light")
    page.click("[aria-label='Rename task 3 and 7']")
    page.driver.switch_to.active_element.send_keys(" drawn")
    page.click("dialog button", "Rename")
    page.wait(lambda: page.find("[aria-label='Forget task 3 and 7 drawn']"), "the new name")
    page.click("[aria-label='Forget task 2 and 4']")
    page.click("dialog button", "Forget")
    page.wait(lambda: len(page.driver.find_elements("css selector", ".task")) == 1, "one task")

    page.reload()
    page.open("watch")
    page.wait(lambda: page.find("[aria-label='Forget task 3 and 7 drawn']"), "the kept task")
    assert page.find("[aria-label='Forget task 2 and 4']") is None
    assert ask_drawing(page, "3").startswith("3\n")

    assert page.console() == []
    assert page.hosts() == {url.removeprefix("http://").rstrip("/")}


def test_keyboard_is_enough_and_a_draft_survives_a_reload(page: Page) -> None:
    page.open("teach")
    page.tab_to("Add a class")
    page.press(Keys.ENTER)
    page.press("<b>cat</b>")
    page.tab_to("Draw")
    page.press(Keys.ENTER)
    page.tab_to("Drawing pad.")
    page.press(Keys.SPACE, *[Keys.ARROW_DOWN] * 5, Keys.SPACE)
    page.tab_to("Add drawing")
    page.press(Keys.ENTER, Keys.ESCAPE)
    page.wait(lambda: page.find(".thumbnail"), "the drawing")
    page.tab_to("Remove picture 1 of <b>cat</b>", backwards=True)
    page.reload()
    page.wait(lambda: page.find(".thumbnail"), "the drawing after a reload")
    name = page.wait(lambda: page.find(".class-name"), "the class after a reload")
    assert name.get_attribute("value") == "<b>cat</b>"


def test_the_camera_and_the_clipboard_add_pictures(page: Page) -> None:
    page.open("teach")
    page.click(".add-tile button", "Add a class")
    page.press("seen")
    page.click(".class-card button", "Camera")
    video = page.wait(lambda: page.find("dialog video"), "the camera")
    page.wait(lambda: video.get_property("videoWidth"), "a picture of the camera")
    page.click("dialog button", "Take picture")
    page.click("dialog button", "Done")
    page.wait(lambda: page.find("[aria-label='Remove picture 1 of seen']"), "the photograph")
    taken = len(page.driver.find_elements("css selector", ".thumbnail"))
    page.paste(letter("K"))
    page.wait(
        lambda: page.find(f"[aria-label='Remove picture {taken + 1} of seen']"), "the pasted letter"
    )
    page.open("ask")
    assert page.console() == []


def test_console_messages_and_other_hosts_would_be_noticed(page: Page) -> None:
    page.open("teach")
    page.driver.execute_script(
        "console.error('heard'); fetch('http://other.invalid').catch(() => 0)"
    )
    messages = " ".join(entry["message"] for entry in page.console())
    assert "heard" in messages
    assert "Content Security Policy" in messages
