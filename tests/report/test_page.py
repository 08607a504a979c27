"""The page as a document: its content, escaping, accessibility, and independence."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from remembering.errors import RememberingError
from remembering.experiments.result import MethodInfo
from remembering.report.page import write_report

from .example import baselines, make_baseline, make_result, write_run

pytestmark = pytest.mark.integration

VOID = {"meta", "link", "br", "img", "hr"}


class Document(HTMLParser):
    """Text, tags and attributes of a page; fails on tags that do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of three groups: two seeds with baselines, a variant, and another experiment."""
    runs = tmp_path_factory.mktemp("report")
    for seed in (0, 1):
        write_run(runs / f"a{seed}", make_result(seed=seed), *baselines(seed))
    write_run(runs / "b", make_result(variant="E=3", epochs=33))
    write_run(runs / "c", make_result(12, experiment="long"))
    return write_report([runs], runs / "out")


@pytest.fixture(scope="module")
def page(written: Path) -> str:
    return written.read_text("utf-8")


def test_page_is_complete(page: str) -> None:
    text = Document(page).text
    for needed in (
        "How to read this",
        "The only unit whose accuracy is called class-incremental accuracy",
        "one adapter is chosen for the whole test set of a task",
        "Results of 8 runs",
        "61.0 ± 0.0",
        "99.3 ± 0.24 (Table 1)",
        "CIFAR-10 in five tasks of two classes",
        "backbone bundled, data digits at 28×28 px, 5 tasks",
        "epochs = 33",
        "2.8.0",
        "0123abcd",
        "remember run cifar10-5 --small --seeds 0,1",
        "remember run long --small --seeds 0",
        "FeTrIL",
    ):
        assert needed in text, needed


def test_page_stands_alone(page: str) -> None:
    document = Document(page)
    assert document.tags["script"] == 0
    assert document.tags["iframe"] == 0
    loaded = document.values("src") + document.values("href") + document.values("xlink:href")
    assert all(value.startswith(("#", "data:")) for value in loaded)
    assert "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))


def test_page_is_accessible(page: str) -> None:
    document = Document(page)
    assert document.tags["h1"] == 1
    assert document.values("lang") == ["en"]
    assert document.tags["caption"] == document.tags["table"] > 0
    assert document.values("role").count("img") == document.tags["figure"] > 0
    assert document.tags["title"] == document.tags["desc"] + 1 == document.tags["figure"] + 1
    for name in ("aria-labelledby", "aria-describedby"):
        assert set(document.values(name)) <= set(document.values("id"))
    for place in [value[1:] for value in document.values("href") if value.startswith("#")]:
        assert place in document.values("id")
    twice = [name for name, n in Counter(document.values("id")).items() if n > 1]
    assert not twice


def test_headings_and_titles_of_figures_are_distinct(page: str) -> None:
    headings = re.findall(r"<h[123][^>]*>(.*?)</h[123]>", page)
    titles = re.findall(r"<title[^>]*>(.*?)</title>", page)
    for found in (headings, titles):
        assert len(found) > 5
        assert len(set(found)) == len(found)


def test_plots_are_written_beside_the_page(written: Path) -> None:
    names = {path.name for path in written.parent.iterdir()}
    assert {"report.html", "footprint.png", "footprint.svg"} <= names
    assert "cifar10-5-small-bundled-accuracy.svg" in names
    assert "cifar10-5-e-3-small-bundled-router-scores.png" in names
    assert "cifar10-5-small-bundled-variants.png" in names
    assert not [name for name in names if name.startswith(".")]


def test_same_results_same_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", make_result())
    first = write_report([run], tmp_path / "one").read_bytes()
    assert write_report([run], tmp_path / "two").read_bytes() == first


HOSTILE = "\"><script>alert('x')</script><img src=x onerror=alert(1)>&amp;--></style>{{ 7*7 }}"


def test_hostile_text_is_shown_not_run(tmp_path: Path) -> None:
    result = make_result(
        experiment=HOSTILE,
        variant=HOSTILE,
        description=HOSTILE,
        backbone=HOSTILE,
        data=HOSTILE,
        command=("run", HOSTILE),
        environment={HOSTILE: HOSTILE},
    )
    tasks = tuple(replace(task, name=HOSTILE, classes=(HOSTILE,)) for task in result.tasks)
    result = replace(result, tasks=tasks)
    baseline = make_baseline(
        "lwf",
        [0.5] * 5,
        experiment=HOSTILE,
        variant=HOSTILE,
        backbone=HOSTILE,
        method=MethodInfo(HOSTILE, HOSTILE, HOSTILE),
    )
    other = replace(result, config=replace(result.config, variant="other"))
    folders = [write_run(tmp_path / "a", result, baseline), write_run(tmp_path / "b", other)]
    document = Document(write_report(folders, tmp_path / "out").read_text("utf-8"))
    assert document.tags["script"] == document.tags["img"] == 0
    assert not document.values("onerror")
    assert HOSTILE in document.text


def test_names_that_look_alike_do_not_overwrite_each_other(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", make_result(variant="E=3")),
        write_run(tmp_path / "b", make_result(variant="e 3")),
    ]
    document = Document(write_report(runs, tmp_path / "out").read_text("utf-8"))
    assert "cifar10-5-e-3-small-bundled-2" in document.values("id")
    assert (tmp_path / "out" / "cifar10-5-e-3-small-bundled-2-accuracy.png").is_file()


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match=r"no results\.json"):
        write_report([tmp_path], tmp_path / "out")


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RememberingError, match="cannot be written"):
        write_report([write_run(tmp_path / "a", make_result())], tmp_path / "file")
