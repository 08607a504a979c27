"""The page in Chromium, as a user drives it."""

from __future__ import annotations

import base64
import io
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

T = TypeVar("T")

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)

# Strokes of digits in a unit square.
STROKES = {
    "2": [
        (0.15, 0.25),
        (0.3, 0.05),
        (0.6, 0),
        (0.8, 0.2),
        (0.7, 0.45),
        (0.4, 0.75),
        (0.1, 1),
        (0.9, 1),
    ],
    "3": [
        (0.2, 0.1),
        (0.6, 0.02),
        (0.8, 0.25),
        (0.45, 0.48),
        (0.82, 0.7),
        (0.6, 0.98),
        (0.15, 0.9),
    ],
    "7": [(0.1, 0.05), (0.5, 0.05), (0.9, 0.05), (0.7, 0.4), (0.5, 0.7), (0.4, 1.0)],
}

DROP = """
const transfer = new DataTransfer();
const bytes = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt(0));
transfer.items.add(new File([bytes], "picture.png", { type: "image/png" }));
document.querySelector("main").dispatchEvent(
  new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: transfer }));
"""


PASTE = """
const transfer = new DataTransfer();
const bytes = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt(0));
transfer.items.add(new File([bytes], "picture.png", { type: "image/png" }));
dispatchEvent(new ClipboardEvent("paste", { cancelable: true, clipboardData: transfer }));
"""


class Page:
    """One browser window on one server."""

    def __init__(self, url: str, browser: str, driver: str, profile: Path) -> None:
        self.url = url
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(driver)
        self.driver = webdriver.Chrome(options=options, service=service)
        self.rng = random.Random(0)
        self.resize(1280, 900)

    def close(self) -> None:
        self.driver.quit()

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page; below 500 px it is a phone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def colors(self, scheme: str) -> None:
        """Choose the light or dark colour scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, tab: str) -> None:
        """Go to a tab by its link, or load the page if it is not open yet."""
        if not self.driver.current_url.startswith(self.url):
            self.driver.get(self.url)
        self.click(f"[data-tab={tab}]")
        self.wait(lambda: self.find(f"#{tab}-title"), f"page {tab}")

    def reload(self) -> None:
        self.driver.refresh()
        self.wait(lambda: self.find("main h1"), "the page after a reload")

    def find(self, selector: str, text: str | None = None) -> WebElement | None:
        """Return the first visible element that matches, with exactly this text if given."""
        for element in self.driver.find_elements(By.CSS_SELECTOR, selector):
            if element.is_displayed() and text in (None, element.text.strip()):
                return element
        return None

    def wait(self, condition: Callable[[], T | None], what: str, seconds: float = 20) -> T:
        """Wait until the condition returns something true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(StaleElementReferenceException, ElementClickInterceptedException):
                if found := condition():  # The page may replace an element at any moment.
                    return found
            time.sleep(0.1)
        raise AssertionError(f"waited {seconds} s for {what}; the page shows:\n{self.text()}")

    def click(self, selector: str, text: str | None = None) -> None:
        """Click on the first visible element that matches, as soon as there is one."""

        def attempt() -> bool:
            element = self.find(selector, text)
            if element:
                element.click()
            return element is not None

        self.wait(attempt, f"{selector} {text or ''}")

    def press(self, *keys: str) -> None:
        """Press keys, or type text, where the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, name: str, *, backwards: bool = False) -> None:
        """Press the tab key until an element whose name starts like this has the focus."""
        for _ in range(40):
            keys = (Keys.SHIFT, Keys.TAB, Keys.NULL) if backwards else (Keys.TAB,)
            self.press(*keys)
            if self.driver.switch_to.active_element.accessible_name.startswith(name):
                return
        raise AssertionError(f"'{name}' cannot be reached with the tab key")

    def text(self, selector: str = "main") -> str:
        return "\n".join(e.text for e in self.driver.find_elements(By.CSS_SELECTOR, selector))

    def draw(self, digit: str) -> None:
        """Draw a digit on the visible pad, a little differently each time."""
        pad = self.wait(lambda: self.find("canvas.pad"), "the drawing pad")
        side = pad.rect["width"] * self.rng.uniform(0.5, 0.7)
        slant = self.rng.uniform(-0.12, 0.12)
        points = [
            (
                int((x - 0.5 + slant * (0.5 - y)) * side * 0.75 + self.rng.gauss(0, side * 0.015)),
                int((y - 0.5) * side + self.rng.gauss(0, side * 0.015)),
            )
            for x, y in STROKES[digit]
        ]
        actions = ActionChains(self.driver, duration=5)
        actions.move_to_element_with_offset(pad, *points[0]).click_and_hold()
        for point in points[1:]:
            actions.move_to_element_with_offset(pad, *point)
        actions.release().perform()

    def drop(self, image: Image.Image) -> None:
        """Drop an image file on the page."""
        self.driver.execute_script(DROP, _png(image))

    def paste(self, image: Image.Image) -> None:
        """Paste an image file."""
        self.driver.execute_script(PASTE, _png(image))

    def answer(self, what: str) -> str:
        """Return the answer once it differs from the invitation to ask."""
        self.wait(lambda: self.find(".verdict"), what, 60)
        return self.text(".verdict")

    def screenshot(self, file: Path) -> None:
        """Write the whole page as PNG, without scrolling."""
        width = self.driver.execute_script("return innerWidth")
        height = self.driver.execute_script("return document.documentElement.scrollHeight")
        self.resize(width, max(height, 844 if width < 500 else 800))
        time.sleep(0.5)  # Transitions end.
        self.driver.save_screenshot(str(file))
        self.resize(width, 844 if width < 500 else 900)

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(
            self.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
        )

    def console(self) -> list[dict[str, Any]]:
        """Return what was written to the console since the last call."""
        return list(self.driver.get_log("browser"))

    def hosts(self) -> set[str]:
        """Return the hosts that the page sent requests to since the last call."""
        hosts = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = urlsplit(message["params"]["request"]["url"])
                if url.scheme in ("http", "https", "ws", "wss"):
                    hosts.add(url.netloc)
        return hosts


def _png(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
