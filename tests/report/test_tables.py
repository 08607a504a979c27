"""Tables: the right numbers in the right rows, and text that cannot break out of its cell."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from remembering.experiments.result import NoveltyResult, RunResult
from remembering.report.collect import group_runs
from remembering.report.groups import Group
from remembering.report.table import BREAK, Table
from remembering.report.tables import (
    novelty_table,
    published_table,
    summary_table,
    tasks_table,
    units_table,
)

from .example import GAUSSIAN, baselines, make_result, published_model, routing_result, unit_result


def group(*results: RunResult) -> Group:
    (found,) = group_runs(results)
    return found


def column(table: Table, header: str) -> dict[str, str]:
    place = table.headers.index(header)
    return {row[0].split(" (")[0]: row[place] for row in table.rows}


def test_units_table_of_one_seed() -> None:
    table = units_table(group(make_result(), *baselines()))
    assert column(table, "Accuracy (%)") == {
        "sample": "61.0",
        "group_32": "87.0",
        "group_128": "95.0",
        "task": "97.0",
        "correct adapter given": "98.0",
        "routing ablated": "44.0",
        "joint training": "93.0",
        "sequential fine-tuning": "19.8",
    }
    routed = column(table, "Routing accuracy (%)")
    assert (routed["sample"], routed["task"], routed["joint training"]) == ("62.0", "100.0", "–")
    forgotten = column(table, "Forgetting (points)")
    assert (forgotten["sample"], forgotten["task"]) == ("12.3", "–")
    assert forgotten["sequential fine-tuning"] == "81.0"
    paper = column(table, "Paper (%)")
    assert (paper["sample"], paper["task"]) == ("–", "99.3 ± 0.24 (Table 1)")
    for fact in ("bundled", "digits", "28×28", "seed 0", "5 tasks"):
        assert fact in table.caption


def test_the_published_configuration_has_a_row_per_unit() -> None:
    table = units_table(group(make_result(), published_model()))
    assert table.rows[-2:] == (
        ("Ours, as published", "30.0", "31.0", "12.3", "–"),
        ("Ours, as published (task)", "90.0", "100.0", "–", "–"),
    )


def test_numbers_of_the_paper_are_shown_only_beside_its_router() -> None:
    table = units_table(group(make_result(2, routing=routing_result(2, router=GAUSSIAN))))
    assert "Paper (%)" not in table.headers
    assert "ViT-B/16" not in table.note


def test_several_seeds_show_their_deviation() -> None:
    results = [
        make_result(2, seed, units={"sample": unit_result([1.0, accuracy])})
        for seed, accuracy in enumerate((0.5, 0.6, 0.7))
    ]
    assert column(units_table(group(*results)), "Accuracy (%)")["sample"] == "60.0 ± 10.0"


def test_a_number_that_some_seeds_lack_says_so() -> None:
    table = units_table(group(make_result(), make_result(seed=1), *baselines()))
    assert column(table, "Accuracy (%)")["joint training"] == "93.0 (1 of 2 seeds)"


def test_what_was_not_measured_has_no_row_and_no_column() -> None:
    routing = routing_result(1, ablated_after=(None,))
    table = units_table(group(make_result(1, experiment="digits", routing=routing)))
    assert table.headers == ("Routing unit", "Accuracy (%)", "Routing accuracy (%)")
    assert [row[0] for row in table.rows][4:] == ["correct adapter given"]


def test_published_number_is_shown_even_if_its_unit_was_not_run() -> None:
    units = {"sample": make_result().units["sample"]}
    table = units_table(group(make_result(units=units)))
    assert column(table, "Accuracy (%)")["task"] == "–"
    assert column(table, "Paper (%)")["task"] == "99.3 ± 0.24 (Table 1)"


def test_no_negative_zero() -> None:
    units = {"sample": unit_result([1.0, 0.5], forgetting=-0.0001)}
    table = units_table(group(make_result(2, units=units)))
    assert column(table, "Forgetting (points)")["sample"] == "0.0"


def test_summary_has_a_row_for_each_group_with_its_settings() -> None:
    groups = [
        group(*(make_result(seed=seed) for seed in (0, 1))),
        group(make_result(variant="rank=3", backbone="x/y", small=False)),
    ]
    table = summary_table(groups)
    first, second = (dict(zip(table.headers, row, strict=True)) for row in table.rows)
    assert first["Experiment"] == "cifar10-5 (small)"
    assert second["Experiment"] == "cifar10-5, rank=3"
    assert first["Backbone; data; tasks; seeds"] == "bundled; digits, 28 px; 5 tasks; seeds 0, 1"
    assert second["Backbone; data; tasks; seeds"] == "x/y; digits, 28 px; 5 tasks; seed 0"
    assert first["sample (%)"] == "61.0 ± 0.0"
    assert second["task (%)"] == "97.0"
    assert first["Paper (%)"] == "task: 99.3 ± 0.24 (Table 1)"
    assert second["Paper (%)"] == "–"
    assert (first["Adapters"], first["Total"]) == ("20.5k", "23.1k + 0.40 MB replay")


def test_tasks_table_lists_them_in_order() -> None:
    rows = tasks_table(group(make_result(2))).rows
    assert rows[1] == ("2. digits 2-3", "2, 3", "280", "80", "1", "4.2")


def test_novelty_is_shown_seed_by_seed() -> None:
    novelty = NoveltyResult(0.05, (0.072, 0.048), (0.8506, None))
    routing = replace(routing_result(2), novelty=novelty)
    table = novelty_table(group(*(make_result(2, seed, routing=routing) for seed in (0, 1))))
    assert table.headers[1:3] == ("AUROC, seed 0", "AUROC, seed 1")
    assert table.headers[3] == "False alarms, seed 0 (%)"
    assert table.rows == (
        ("1", "0.851", "0.851", "7.2", "7.2"),
        ("2", "–", "–", "4.8", "4.8"),
    )
    assert "target rate of 5%" in table.note


def test_published_table_exists_only_for_splits_of_the_paper() -> None:
    table = published_table("cifar100-20")
    assert table is not None
    assert ("FeTrIL", "61.5 ± 0.73") in table.rows
    assert published_table("digits") is None


HOSTILE = "a|b <script>alert(1)</script> [red]x[/] *c*\n# d"


@pytest.fixture
def hostile() -> Table:
    return Table(HOSTILE, (HOSTILE, "n"), ((HOSTILE, "1"),), HOSTILE)


def test_html_is_escaped_and_scoped(hostile: Table) -> None:
    page = hostile.to_html()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 5
    assert '<th scope="col">' in page
    assert '<th scope="row">' in page
    assert "<caption>" in page


def test_markdown_keeps_its_cells(hostile: Table) -> None:
    lines = hostile.to_markdown().splitlines()
    escaped = r"a\|b \<script\>alert(1)\</script\> \[red\]x\[/\] \*c\* \# d"
    assert lines == [
        f"**{escaped}**",
        "",
        f"| {escaped} | n |",
        "| --- | ---: |",
        f"| {escaped} | 1 |",
        "",
        escaped,
    ]


def test_terminal_shows_text_verbatim(hostile: Table) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(hostile.to_rich())
    assert "[red]x[/]" in console.export_text()


def test_lines_of_a_cell() -> None:
    table = Table("x", ("a", "b"), ((f"n{BREAK}m", f"1.0{BREAK}± 0.2{BREAK}3 MB"),))
    assert "| n<br>m | 1.0<br>±&nbsp;0.2<br>3&nbsp;MB |" in table.to_markdown()
    assert '<td class="number">1.0<br>± 0.2<br>3 MB</td>' in table.to_html()
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table.to_rich())
    assert "± 0.2" in console.export_text()
