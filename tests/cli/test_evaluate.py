"""`remember evaluate`: tables, JSON, and the page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from remembering.cli import main
from remembering.data.task import Task
from remembering.model import RememberingTransformer

from .example import class_folder, fails

pytestmark = pytest.mark.unit


def run(arguments: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["evaluate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_json_has_the_values_of_the_evaluation(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads(run([trained / "model", trained / "pets", "--json"], capsys))
    model = RememberingTransformer.load(trained / "model")
    expected = model.evaluate(Task.from_folder(trained / "pets"))
    assert result["accuracy"] == expected.accuracy
    assert result["confusion"] == [list(row) for row in expected.confusion]
    assert result["unit"] == "sample"
    assert len(result["mistakes"]) == len(expected.mistakes)
    assert "auroc" not in result


def test_unknown_images_and_the_linear_probe(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = class_folder(tmp_path / "unknown", ("x",), seed=5)
    pets = trained / "pets"
    arguments = [trained / "model", pets, "--unknown", unknown, "--train", pets]
    result = json.loads(run([*arguments, "--json"], capsys))
    assert result["unknown_images"] == 3
    assert 0 <= result["auroc"] <= 1
    assert (result["probe_accuracy"], result["probe_images"]) == (1.0, 6), "on training images"
    out = run(arguments, capsys)
    for words in (
        "accuracy (%)",
        "each image alone",
        "AUROC",
        "linear probe",
        "By task",
        "By class",
    ):
        assert words in out


class Page(HTMLParser):
    """Sources of images, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.sources += [value or "" for name, value in attrs if name == "src"]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_escaped_and_loads_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    label = "<script>alert(1)<"
    data = class_folder(tmp_path / "data", ("cat", label, "caf\udce9", " "))
    options = ["--backbone", "bundled", "--epochs", "1", "--router.kind", "subspace"]
    assert main(["learn", str(tmp_path / "m"), str(data), *options]) == 0
    # Swapped names, so that there are mistakes.
    (data / "cat").rename(data / "other")
    (data / label).rename(data / "cat")
    (data / "other").rename(data / label)
    run([tmp_path / "m", data, "--html", tmp_path / "page.html"], capsys)
    page = Page((tmp_path / "page.html").read_text())
    assert "script" not in page.tags
    assert label in page.text
    assert "caf\\xe9" in page.text, "in the figure, and as \\udce9 in tables"
    assert page.sources
    assert all(source.startswith("data:image/jpeg;base64,") for source in page.sources)
    assert "each image alone" in page.text
    assert "Reliability" in page.text
    assert "Confusion" in page.text


def test_classes_that_were_not_learned(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = class_folder(tmp_path / "other", ("cat", "horse"))
    assert main(["evaluate", str(trained / "model"), str(other)]) == 0
    captured = capsys.readouterr()
    assert "warning: left out images of classes that were not learned: horse (3)" in captured.err
    assert "3 of other classes left out" in captured.out
    fails(["evaluate", trained / "model", tmp_path / "none"], capsys, "is not a folder")


def test_the_page_replaces_nothing_but_a_page(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, photo = trained / "model", tmp_path / "photo.png"
    before = (model / "manifest.json").read_bytes()
    photo.write_bytes(b"image")
    arguments = ["evaluate", str(model), str(trained / "pets"), "--html"]
    fails([*arguments, str(photo)], capsys, "exists and is no page")
    fails([*arguments, str(model / "manifest.json")], capsys, "exists and is no page")
    fails([*arguments, str(model / "page.html")], capsys, "is a model")
    assert photo.read_bytes() == b"image"
    assert (model / "manifest.json").read_bytes() == before
