"""Comparisons: read, averaged over seeds, sorted, drawn; numbers that are easy to check by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from remembering.cli.terminal import show
from remembering.errors import RememberingError
from remembering.report.comparison import (
    comparison_table,
    find_comparisons,
    load_all,
    load_comparison,
    methods_table,
)
from remembering.report.comparison_plots import cost_chart, method_curves
from remembering.report.markdown import results_markdown
from remembering.report.page import write_report

from .example import make_results, write_run
from .test_page import HOSTILE, Document


def scores(after: list[float | None], forgetting: float | None = 0.1) -> dict[str, Any]:
    known = [value for value in after if value is not None]
    return {
        "accuracy": after[-1],
        "average": sum(known) / len(known) if len(known) == len(after) else None,
        "forgetting": forgetting if len(known) == len(after) else None,
        "accuracy_after": after,
        "matrix": [[value] for value in after],
    }


def make_record(method: str, seed: int, units: dict[str, Any], **changes: Any) -> dict[str, Any]:
    record = {
        "version": 2,
        "experiment": "cifar10-5",
        "description": "CIFAR-10 in two.",
        "small": True,
        "backbone": "bundled",
        "image_size": 28,
        "data": "cifar10",
        "seed": seed,
        "tasks": 2,
        "method": method,
        "title": method.upper(),
        "reference": "Somebody (2020), A title",
        "stores": "next to nothing",
        "published": None,
        "options": {},
        "given": {},
        "asked": ["cifar10-5", "--small"],
        "units": units,
        "trained": 1000,
        "kept": {"parameters": 2000, "bytes": 8000, "images": 200},
        "seconds_learning": [1.0, 2.5],
        "images_per_second": 100.0,
        "seconds": 5.0,
        "environment": {},
    }
    return {**record, **changes}


def write(folder: Path, records: list[dict[str, Any]], left_out: Any = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "compare.toml").write_text("")
    (folder / "left-out.json").write_text(json.dumps(left_out or {}))
    for record in records:
        path = folder / record["method"] / f"seed-{record['seed']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    records = [
        make_record("lwf", seed, {"sample": scores([0.9, end])}, title="LwF", published="LwF")
        for seed, end in ((0, 0.4), (1, 0.6))
    ]
    units = {"task": scores([1.0, 0.9]), "sample": scores([0.9, 0.3])}
    records.append(make_record("ours-published", 0, units, title="Ours", published="Ours"))
    records.append(make_record("joint", 0, {"sample": scores([None, 0.8])}, title="Joint"))
    folder = write(tmp_path / "runs" / "compare", records)
    (folder / "lwf" / "seed-2.so-far.json").write_text("{}")  # under way: not counted
    return folder


def test_table_is_sorted_and_averaged(folder: Path) -> None:
    table = comparison_table(load_comparison(folder))
    assert [row[0] for row in table.rows] == ["Ours (task)", "Joint", "LwF", "Ours (sample)"]
    lwf = table.rows[2]
    assert lwf[1:] == (
        "50.0 ± 14.1",
        "70.0 ± 7.1",
        "10.0 ± 0.0",
        "1,000",
        "2,000",
        "200",
        "8.0 kB",
        "3.5",
        "100",
        "54.7 ± 1.18",
    )
    assert table.rows[1][1:4] == ("80.0 (1 of 2)", "–", "–")
    assert "seeds 0, 1" in table.caption


def test_the_paper_s_own_number_stands_only_beside_its_unit(folder: Path) -> None:
    printed = {row[0]: row[-1] for row in comparison_table(load_comparison(folder)).rows}
    assert printed["Ours (task)"] == "99.3 ± 0.24"
    assert printed["Ours (sample)"] == "–"


def test_methods_left_out_come_last_with_the_reason(tmp_path: Path) -> None:
    why = {"title": "OWM", "reference": "x", "published": "OWM", "reason": "of a reason"}
    records = [make_record("lwf", 0, {"sample": scores([0.9, 0.1])})]
    table = comparison_table(load_comparison(write(tmp_path / "c", records, {"owm": why})))
    assert table.rows[-1][0] == "OWM"
    assert table.rows[-1][-1] == "51.7 ± 0.06"
    assert "OWM is left out: of a reason." in table.note


def test_methods_are_told_once(folder: Path) -> None:
    rows = methods_table(load_comparison(folder)).rows
    assert [row[0] for row in rows] == ["Ours", "Joint", "LwF"]
    assert rows[0][1:] == ("ours-published", "next to nothing", "–", "Somebody (2020), A title")


def test_options_and_the_command_that_makes_it_again(tmp_path: Path) -> None:
    """Options that were given are in the command, those in force in the table of methods."""
    asked = ["my/two tasks.toml", "--backbone", "models/vit", "--image-size", "112"]
    records = [
        make_record(
            "der",
            seed,
            {"sample": scores([0.9, 0.1])},
            options={"memory": 1234567.0, "alpha": 0.1},
            given={"memory": 1234567.0},
            asked=asked,
        )
        for seed in (0, 2)
    ]
    records.append(make_record("ewc", 0, {"sample": scores([0.9, 0.1])}, asked=asked))
    comparison = load_comparison(write(tmp_path / "c", records))
    assert comparison.command == (
        "remember compare 'my/two tasks.toml' --backbone models/vit --image-size 112 "
        "--methods der,ewc --options der.memory=1234567 --seeds 0,2"
    )
    told = {row[0]: row[3] for row in methods_table(comparison).rows}
    assert told == {"DER": "memory = 1234567, alpha = 0.1", "EWC": "–"}


def test_curves_have_bands_over_seeds_and_levels(folder: Path) -> None:
    axes = method_curves(load_comparison(folder)).axes[0]
    drawn = {line.get_label(): line for line in axes.lines}
    assert list(drawn["LwF"].get_ydata()) == [90.0, 50.0]
    assert list(drawn["Joint"].get_ydata()) == [80.0, 80.0]
    assert len(axes.collections) == 1  # one method has more than one seed


def test_cost_is_drawn_against_bytes(folder: Path) -> None:
    axes = cost_chart(load_comparison(folder)).axes[0]
    assert axes.get_xscale() == "log"
    points = {
        container.get_label(): container.lines[0].get_xydata().tolist()[0]
        for container in axes.containers
    }
    assert points["LwF"] == [8000.0, 50.0]
    assert len(points) == 4


def test_page_of_runs_and_comparisons(folder: Path, tmp_path: Path) -> None:
    write_run(folder.parent / "run", make_results())
    page = write_report([folder.parent], tmp_path / "out").read_text()
    document = Document(page)
    for needed in (
        "cifar10-5 (small): methods compared",
        "54.7 ± 1.18",
        "Memory footprint",
        "remember compare cifar10-5 --small --methods joint,lwf,ours-published --seeds 0,1",
    ):
        assert needed in document.text.replace("\xa0", " "), needed
    assert document.tags["caption"] == document.tags["table"]
    assert (tmp_path / "out" / "compare-cifar10-5-small-bundled-accuracy.svg").is_file()


def test_page_of_a_comparison_alone(folder: Path, tmp_path: Path) -> None:
    document = Document(write_report([folder], tmp_path / "out").read_text())
    assert "Memory footprint" not in document.text
    for place in [value[1:] for value in document.values("href") if value.startswith("#")]:
        assert place in document.values("id")


def test_markdown(folder: Path) -> None:
    text = results_markdown([folder])
    assert "## Methods compared" in text
    assert "| LwF | 50.0 ± 14.1 | 70.0 ± 7.1 |" in text


def test_hostile_text_is_shown_not_run(tmp_path: Path) -> None:
    hostile: dict[str, Any] = dict.fromkeys(
        ("title", "reference", "stores", "description", "backbone", "data", "experiment"), HOSTILE
    )
    hostile |= {"asked": [HOSTILE], "options": {HOSTILE: 1.0}, "given": {HOSTILE: 1.0}}
    record = make_record("lwf", 0, {"sample": scores([0.9, 0.1])}, **hostile)
    why = {"title": HOSTILE, "reference": HOSTILE, "published": None, "reason": HOSTILE}
    folder = write(tmp_path / "c", [record], {"x": why})
    document = Document(write_report([folder], tmp_path / "out").read_text())
    assert document.tags["script"] == document.tags["img"] == 0
    assert HOSTILE in document.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, "version 2"),
        ({"given": None}, "no right 'given'"),
        ({"units": None}, "no right 'units'"),
        ({"kept": 3}, "no right 'kept'"),
        ({"image_size": 3}, "differ in image_size"),
    ],
)
def test_records_that_cannot_be_used(folder: Path, change: dict[str, Any], message: str) -> None:
    path = folder / "lwf" / "seed-1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RememberingError, match=message):
        load_comparison(folder)


def test_records_that_are_damaged_or_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "lwf" / "seed-1.json").write_text("{")
    with pytest.raises(RememberingError, match="cannot be read"):
        load_comparison(folder)
    with pytest.raises(RememberingError, match="done yet"):
        load_comparison(write(tmp_path / "empty", []))
    assert find_comparisons([tmp_path / "nowhere"]) == []


def test_a_comparison_that_has_only_begun_hides_no_other(folder: Path) -> None:
    begun = write(folder.parent / "begun", [])
    assert [found.folder for found in find_comparisons([folder.parent])] == [folder]
    with pytest.raises(RememberingError, match="done yet"):
        load_all([begun])
    (folder / "compare.toml").unlink()
    with pytest.raises(RememberingError, match="done yet"):
        load_all([folder.parent])


DAMAGE: list[dict[str, Any]] = [
    {"units": {}},
    {"units": {"sample": scores([0.5, 0.5]) | {"accuracy": "much"}}},
    {"units": {"sample": scores([0.5, 0.5]) | {"accuracy": float("nan")}}},
    {"units": {"sample": scores([0.5])}},
    {"kept": {}},
    {"options": {"strength": "much"}},
    {"seed": True},
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_named(damage: dict[str, Any], tmp_path: Path) -> None:
    record = make_record("ewc", 0, {"sample": scores([0.5, 0.5])})
    folder = write(tmp_path / "compare", [record])
    path = folder / "ewc" / "seed-0.json"
    assert load_comparison(folder).rows
    path.write_text(json.dumps(record | damage))
    with pytest.raises(RememberingError, match=f"{path} has no right '{next(iter(damage))}'"):
        load_comparison(folder)


def test_a_record_in_the_place_of_another_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "compare", [make_record("ewc", 0, {"sample": scores([0.5, 0.5])})])
    (folder / "ewc").rename(folder / "lwf")
    with pytest.raises(RememberingError, match="holds the outcome of ewc/seed-0"):
        load_comparison(folder)


@pytest.mark.parametrize("left_out", [[], {"supsup": 1}, {"supsup": {"title": "SupSup"}}])
def test_a_damaged_list_of_those_left_out_is_named(left_out: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "compare", [make_record("ewc", 0, {"sample": scores([0.5, 0.5])})])
    (folder / "left-out.json").write_text(json.dumps(left_out))
    with pytest.raises(RememberingError, match=r"left-out\.json is damaged"):
        load_comparison(folder)


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_narrow_terminal_shows_whole_columns(
    width: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many as there is room for; what is left out is named."""
    table = comparison_table(load_comparison(folder))
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show(table)
    text = Text.from_ansi(capsys.readouterr().out).plain
    assert max(map(len, text.splitlines())) <= width
    shown = [row for row in table.rows if row[1] in text]
    assert shown == list(table.rows)
    missing = text.partition("The terminal is too narrow for: ")[2]
    assert bool(missing) == (width < 140)
    assert all(header in text for header in ("Method", "Accuracy", "Forgetting"))


def test_who_is_asked_once_and_who_lacks_seeds_is_explained(tmp_path: Path) -> None:
    records = [
        make_record("ewc", 0, {"sample": scores([0.5, 0.5])}),
        make_record("joint", 0, {"sample": scores([None, 0.5])}),
        make_record("joint", 1, {"sample": scores([None, 0.5])}),
    ]
    note = comparison_table(load_comparison(write(tmp_path / "compare", records))).note
    assert "(n of 2): the other seeds are not run yet" in note
    assert "Who has no average was asked after the last task only" in note
    note = comparison_table(load_comparison(write(tmp_path / "plain", records[:1]))).note
    assert "not run yet" not in note
    assert "no average" not in note


def test_seeds_of_a_method_have_the_same_options(tmp_path: Path) -> None:
    records = [
        make_record("ewc", seed, {"sample": scores([0.5, 0.5])}, options={"strength": float(seed)})
        for seed in (0, 1)
    ]
    with pytest.raises(RememberingError, match="other options than other seeds"):
        load_comparison(write(tmp_path / "compare", records))
