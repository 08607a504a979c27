"""Where request bodies are decoded: small images at once, everything else in a thread."""

from __future__ import annotations

import base64
import io
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from PIL import Image
from torch import Tensor

from remembering.data.decoding import decode_image
from remembering.errors import RememberingError
from remembering.serving import inputs
from remembering.serving.inputs import Reader
from remembering.serving.options import Limits, ServeOptions
from remembering.serving.problems import ProblemError

pytestmark = pytest.mark.unit


def encoded(side: int) -> str:
    file = io.BytesIO()
    Image.new("L", (side, side)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The thread of each image that was decoded completely."""
    threads: list[threading.Thread] = []

    def recorded(image: bytes, where: str, max_pixels: int) -> Tensor:
        decoded = decode_image(image, where, max_pixels=max_pixels)
        threads.append(threading.current_thread())
        return decoded

    monkeypatch.setattr(inputs, "decode_image", recorded)
    return threads


@pytest.mark.parametrize(("side", "inline"), [(28, True), (1200, False)])
def test_few_bytes_with_many_pixels_do_not_hold_up_other_requests(
    side: int, inline: bool, decoders: list[threading.Thread]
) -> None:
    reader, body = Reader(Limits()), f'{{"images": ["{encoded(side)}"]}}'.encode()
    assert len(body) < 64 * 1024
    query = anyio.run(reader._decoded, len(body), partial(inputs._query, body))
    assert query.images[0].shape[-1] == side
    assert [thread is threading.main_thread() for thread in decoders] == [inline]


def test_the_problem_of_a_prediction_names_the_real_limit() -> None:
    limits = replace(Limits(), image_pixels=2_000_000)
    body = f'{{"images": ["{encoded(1500)}"]}}'.encode()
    with pytest.raises(ProblemError, match="2,000,000"):
        anyio.run(Reader(limits)._decoded, len(body), partial(inputs._query, body))


def test_a_task_has_a_limit_of_pixels() -> None:
    limits = replace(Limits(), task_pixels=3000)
    images = [base64.b64decode(encoded(28))] * 2
    classes = {"a": images, "b": images}
    with pytest.raises(ProblemError, match="more than 3,000 pixels"):
        inputs._checked_task("task", classes, limits)


def test_options_refuse_times_that_cannot_be_waited_for() -> None:
    for seconds in (float("inf"), float("nan"), 0.0, -1.0, 1e20):
        with pytest.raises(RememberingError, match="poll_seconds"):
            ServeOptions(Path("model"), poll_seconds=seconds)
