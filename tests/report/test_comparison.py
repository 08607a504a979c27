"""Comparisons: averaged over seeds, sorted, drawn; numbers that are easy to check by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.text import Text

from remembering.cli.terminal import show
from remembering.errors import RememberingError
from remembering.experiments.result import MethodInfo, RunResult, UnitResult
from remembering.learner import Footprint
from remembering.report.collect import collect, group_comparisons
from remembering.report.comparison import (
    Comparison,
    comparison_table,
    cost_table,
    methods_table,
)
from remembering.report.comparison_plots import cost_chart, method_curves
from remembering.report.markdown import results_markdown
from remembering.report.page import write_report

from .example import make_baseline, make_result, unit_result, write_comparison, write_run
from .test_page import HOSTILE, Document
from .test_plots import texts

INFO = MethodInfo("EWC", "Somebody (2020), A title", "next to nothing")
SIZE = Footprint(parameters=2000, bytes=8000, trained=1000, replay_images=200)


def result(name: str, after: Sequence[float | None], seed: int = 0, **changes: Any) -> RunResult:
    changes.setdefault("method", replace(INFO, title=name.upper()))
    changes.setdefault("command", ("compare", "cifar10-5", "--small"))
    changes.setdefault("data", "cifar10")
    changes.setdefault("seconds_learning", (1.0, 2.5))
    return make_baseline(name, after, seed, footprint=SIZE, **changes)


def compared(*results: RunResult) -> Comparison:
    (found,) = group_comparisons(results)
    return found


def units(**after: list[float]) -> dict[str, UnitResult]:
    return {unit: unit_result(values) for unit, values in after.items()}


@pytest.fixture
def results() -> list[RunResult]:
    lwf = replace(INFO, title="LwF", published="LwF")
    ours = replace(INFO, title="Ours", published="Ours")
    both = units(task=[1.0, 0.9], sample=[0.9, 0.3])
    return [
        result("lwf", [0.9, 0.4], 0, method=lwf),
        result("lwf", [0.9, 0.6], 1, method=lwf),
        result("ours-published", [0.9, 0.3], method=ours, units=both),
        result("joint", [None, 0.8], method=replace(INFO, title="Joint")),
    ]


def test_table_is_sorted_and_averaged(results: list[RunResult]) -> None:
    table = comparison_table(compared(*results))
    assert [row[0] for row in table.rows] == ["Ours (task)", "Joint", "LwF", "Ours (sample)"]
    assert table.headers[1:4] == ("Accuracy (%)", "Seeds", "Bytes")
    assert table.rows[2][1:] == (
        "50.0 ± 14.1",
        "2",
        "8.0 kB",
        "70.0 ± 7.1",
        "10.0 ± 0.0",
        "54.7 ± 1.18",
    )
    assert table.rows[1][1:6] == ("80.0", "1", "8.0 kB", "–", "–")
    assert "seeds 0, 1" in table.caption


def test_costs_have_a_row_per_method(results: list[RunResult]) -> None:
    table = cost_table(compared(*results))
    assert [row[0] for row in table.rows] == ["Ours", "Joint", "LwF"]
    assert table.rows[2][1:] == ("8.0 kB", "2,000", "1,000", "200", "3.5", "100")


def test_differences_to_ours_are_paired_by_seed() -> None:
    ours = [result("ours", [0.9, value], seed) for seed, value in enumerate((0.6, 0.7, 0.9))]
    lwf = [result("lwf", [0.9, value], seed) for seed, value in enumerate((0.5, 0.7))]
    single = result("ewc", [0.9, 0.8], 1)
    unpaired = result("si", [0.9, 0.8], 1, data_sha256="another")
    more = [result("der", [0.9, value], seed) for seed, value in ((2, 0.8), (3, 0.7))]
    table = comparison_table(compared(*ours, *lwf, single, unpaired, *more))
    assert table.headers[2] == "Minus ours (points)"
    # LwF: -10 and 0 points, mean -5, deviation 7.1
    assert {row[0]: row[2] for row in table.rows} == {
        "OURS": "–",
        "LWF": "−5.0 ± 7.1",
        "EWC": "+10.0",
        "SI": "–",
        "DER": "−10.0 (1 common seed)",
    }
    assert {row[0]: row[3] for row in table.rows}["DER"] == "2"


def test_the_papers_own_number_is_shown_only_beside_its_unit(results: list[RunResult]) -> None:
    printed = {row[0]: row[-1] for row in comparison_table(compared(*results)).rows}
    assert printed["Ours (task)"] == "99.3 ± 0.24"
    assert printed["Ours (sample)"] == "–"


def test_each_method_is_described_once(results: list[RunResult]) -> None:
    rows = methods_table(compared(*results)).rows
    assert [row[0] for row in rows] == ["Ours", "Joint", "LwF"]
    assert rows[0][1:] == ("ours-published", "next to nothing", "–", "Somebody (2020), A title")


def test_command_contains_changed_options_and_the_table_all(tmp_path: Path) -> None:
    words = ("compare", "my/two tasks.toml", "--backbone", "models/vit", "--image-size", "112")
    der = replace(INFO, title="DER", options={"memory": 1234567.0, "alpha": 0.1})
    changes: dict[str, Any] = {"command": words, "options": {"memory": 1234567.0}, "method": der}
    comparison = compared(
        result("der", [0.9, 0.1], 0, **changes),
        result("der", [0.9, 0.1], 2, **changes),
        result("ewc", [0.9, 0.1], command=words),
    )
    assert comparison.command == (
        "remember compare 'my/two tasks.toml' --backbone models/vit --image-size 112 "
        "--methods der,ewc --options der.memory=1234567 --seeds 0,2"
    )
    options = {row[0]: row[3] for row in methods_table(comparison).rows}
    assert options == {"DER": "memory = 1234567, alpha = 0.1", "EWC": "–"}


def test_curves_have_bands_over_seeds_and_points(results: list[RunResult]) -> None:
    axes = method_curves(compared(*results)).figure.axes[0]
    drawn = {line.get_label(): line for line in axes.lines}
    assert list(drawn["LwF"].get_ydata()) == [90.0, 50.0]
    first, last = np.asarray(drawn["Joint"].get_ydata(), dtype=float)
    assert np.isnan(first)
    assert last == 80.0
    assert len(axes.collections) == 1  # one method has more than one seed


def test_of_many_methods_only_ours_has_a_band() -> None:
    names = ["ours", *(f"m{i}" for i in range(8))]
    results = [result(n, [0.9, 0.5 + 0.1 * seed], seed) for n in names for seed in (0, 1)]
    axes = method_curves(compared(*results)).figure.axes[0]
    assert len(axes.collections) == 1


def test_cost_is_drawn_against_bytes(results: list[RunResult]) -> None:
    plot = cost_chart(compared(*results))
    axes = plot.figure.axes[0]
    assert axes.get_xscale() == "log"
    points = {
        container.get_label(): container.lines[0].get_xydata().tolist()[0]
        for container in axes.containers
    }
    assert points["LwF"] == [8000.0, 50.0]
    assert len(points) == 4
    assert "50.0 LwF" in texts(plot)
    assert "LwF 50.0 % (8.0 kB)" in plot.numbers


def test_page_of_runs_and_comparisons(results: list[RunResult], tmp_path: Path) -> None:
    write_comparison(tmp_path / "runs" / "compare", results)
    write_run(tmp_path / "runs" / "run", make_result())
    page = write_report([tmp_path / "runs"], tmp_path / "out").read_text()
    document = Document(page)
    for needed in (
        "cifar10-5 (small): comparison of methods",
        "Results of 5 runs",
        "54.7 ± 1.18",
        "Memory footprint",
        "remember compare cifar10-5 --small --methods joint,lwf,ours-published --seeds 0,1",
    ):
        assert needed in document.text.replace("\xa0", " "), needed
    assert document.tags["caption"] == document.tags["table"]
    assert (tmp_path / "out" / "compare-cifar10-5-small-bundled-accuracy.svg").is_file()


def test_page_of_a_comparison_alone(results: list[RunResult], tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "compare", results)
    document = Document(write_report([folder], tmp_path / "out").read_text())
    assert "Memory footprint of the models" not in document.text
    for place in [value[1:] for value in document.values("href") if value.startswith("#")]:
        assert place in document.values("id")


def test_markdown(results: list[RunResult], tmp_path: Path) -> None:
    text = results_markdown([write_comparison(tmp_path / "compare", results)])
    assert "## Comparison of methods" in text
    assert "| LwF | 50.0 ± 14.1 | 2 | 8.0 kB | 70.0 ± 7.1 |" in text


def test_hostile_text_is_shown_not_run(tmp_path: Path) -> None:
    found = result(
        "lwf",
        [0.9, 0.1],
        experiment=HOSTILE,
        description=HOSTILE,
        backbone=HOSTILE,
        data=HOSTILE,
        command=("compare", HOSTILE),
        options={HOSTILE: 1.0},
        method=MethodInfo(HOSTILE, HOSTILE, HOSTILE, None, {HOSTILE: 1.0}),
    )
    folder = write_comparison(tmp_path / "c", [found])
    document = Document(write_report([folder], tmp_path / "out").read_text())
    assert document.tags["script"] == document.tags["img"] == 0
    assert HOSTILE in document.text


def test_comparisons_with_other_settings_are_separate(tmp_path: Path) -> None:
    one = [result("ewc", [0.9, 0.1], epochs=3), result("lwf", [0.9, 0.2], epochs=3)]
    other = [result("ewc", [0.9, 0.5], epochs=4)]
    write_comparison(tmp_path / "one", one)
    write_comparison(tmp_path / "other", other)
    groups, comparisons = collect([tmp_path])
    assert groups == []
    assert sorted(len(comparison.rows) for comparison in comparisons) == [1, 2]


def test_seeds_of_a_method_have_the_same_options() -> None:
    with pytest.raises(RememberingError, match=r"differ in options\.strength"):
        compared(
            *(result("ewc", [0.5, 0.5], seed, options={"strength": seed + 1.0}) for seed in (0, 1))
        )


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_narrow_terminal_shows_whole_columns(
    width: int,
    results: list[RunResult],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As many columns are shown as fit; the others are named."""
    table = comparison_table(compared(*results))
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show(table)
    text = Text.from_ansi(capsys.readouterr().out).plain
    assert max(map(len, text.splitlines())) <= width
    assert [row for row in table.rows if row[1] in text] == list(table.rows)
    missing = text.partition("The terminal is too narrow for: ")[2]
    assert bool(missing) == (width < 80)
    assert all(header in text for header in ("Method", "Accuracy", "Forgetting"))


def test_notes_explain_missing_averages() -> None:
    results = [
        result("ewc", [0.5, 0.5]),
        result("joint", [None, 0.5]),
        result("joint", [None, 0.5], 1),
    ]
    note = comparison_table(compared(*results)).note
    assert "Methods without an average were evaluated after the last task only" in note
    note = comparison_table(compared(results[0])).note
    assert "without an average" not in note
