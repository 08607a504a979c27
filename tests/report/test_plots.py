"""Figures can be drawn for every valid result, are reproducible, and import nothing early."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from remembering.errors import RememberingError
from remembering.experiments.result import RunResult
from remembering.report import plots
from remembering.report.collect import group_runs
from remembering.report.figure import save, svg
from remembering.report.groups import Group

from .example import GAUSSIAN, baselines, make_result, published_model, routing_result, unit_result


def group(*results: RunResult) -> Group:
    (found,) = group_runs(results)
    return found


def texts(drawing: str) -> list[str]:
    found = ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(item.itertext()) for item in found]


def with_scores(result: RunResult, scores: list[list[float]]) -> RunResult:
    assert result.routing is not None
    router = replace(result.routing.router, scores=tuple(map(tuple, scores)))
    return replace(result, routing=replace(result.routing, router=router))


def renamed(result: RunResult, name: str) -> RunResult:
    first, *others = result.tasks
    return replace(result, tasks=(replace(first, name=name), *others))


@pytest.mark.parametrize(
    "results",
    [
        [make_result(), *baselines()],
        [make_result(seed=0), make_result(seed=1)],
        [make_result(1)],
        [make_result(50)],
        [make_result(), published_model(), *baselines()],
    ],
    ids=["baselines", "two seeds", "one task", "fifty tasks", "published configuration"],
)
def test_every_figure_is_drawn(results: list[RunResult], tmp_path: Path) -> None:
    found = group(*results)
    for name, figure in {
        "curves": plots.accuracy_curves(found),
        "heatmap": plots.score_heatmap(found),
        "novelty": plots.novelty_curves(found),
        "footprint": plots.footprint_chart([found]),
        "variants": plots.variant_bars([found, found]),
    }.items():
        png, drawing = save(figure, tmp_path, name)
        with Image.open(png) as image:
            assert min(image.size) > 300
        assert len(texts(drawing.read_text("utf-8"))) > 3


def test_curves_name_every_line() -> None:
    shown = texts(svg(plots.accuracy_curves(group(make_result(), *baselines()))))
    for label in (
        "sample",
        "group_32",
        "group_128",
        "task",
        "correct adapter given",
        "routing ablated",
        "joint training",
        "sequential fine-tuning",
    ):
        assert label in shown


def test_curves_name_the_units_of_the_published_configuration() -> None:
    (axes,) = plots.accuracy_curves(group(make_result(), published_model())).axes
    ends = {line.get_label(): np.asarray(line.get_ydata(), dtype=float)[-1] for line in axes.lines}
    assert ends["Ours, as published"] == pytest.approx(30)
    assert ends["Ours, as published (task)"] == pytest.approx(90)


def test_curve_shows_the_mean_in_percent() -> None:
    results = [
        make_result(2, seed, units={"sample": unit_result([1.0, end])})
        for seed, end in enumerate((0.5, 0.7))
    ]
    (axes,) = plots.accuracy_curves(group(*results)).axes
    line = next(line for line in axes.lines if line.get_label() == "sample")
    assert np.allclose(np.asarray(line.get_ydata(), dtype=float), [100, 60])


def test_heatmap_is_scaled_in_each_row_before_seeds_are_averaged() -> None:
    one = with_scores(make_result(2, seed=0), [[1.0, 3.0], [20.0, 10.0]])
    two = with_scores(make_result(2, seed=1), [[5.0, 1.0], [7.0, 7.0]])
    shown = texts(svg(plots.score_heatmap(group(one, two))))
    # rows scaled: seed 0 [[0, 1], [1, 0]], seed 1 [[1, 0], [0, 0]]; a flat row has no spread
    cells = [text for text in shown if text in ("0.00", "0.50", "1.00")]
    assert cells == ["0.50", "0.50", "0.50", "0.00"]


def test_heatmap_names_the_score_of_the_router() -> None:
    result = make_result(2, routing=routing_result(2, router=GAUSSIAN))
    shown = texts(svg(plots.score_heatmap(group(result))))
    assert "negative log-likelihood, 0–1 per row" in shown


def test_heatmap_shows_the_papers_router_if_it_was_run() -> None:
    result = make_result(2, routing=routing_result(2, router=GAUSSIAN))
    shown = texts(svg(plots.score_heatmap(group(result, published_model(tasks=2)))))
    assert "reconstruction error, 0–1 per row" in shown
    assert [text for text in shown if text in ("0.00", "1.00")] == ["0.00", "1.00", "1.00", "0.00"]


def test_heatmap_names_tasks_only_if_they_are_the_same_for_every_seed() -> None:
    other = renamed(make_result(seed=1), "digits 7-3")
    same = texts(svg(plots.score_heatmap(group(make_result()))))
    mixed = texts(svg(plots.score_heatmap(group(make_result(), other))))
    assert any("digits 2-3" in text for text in same)
    assert not any("digits" in text for text in mixed)


def test_cells_are_annotated_up_to_ten_tasks() -> None:
    few = texts(svg(plots.score_heatmap(group(make_result(10)))))
    many = texts(svg(plots.score_heatmap(group(make_result(11)))))
    assert few.count("0.00") == 10
    assert "0.00" not in many


def test_footprint_is_beside_the_papers() -> None:
    shown = texts(svg(plots.footprint_chart([group(make_result())])))
    for text in ("11.18M (Section 4.2)", "0.22M (Table 2)", "20.5k", "23.1k + 0.40 MB replay"):
        assert text in shown


def test_variants_are_labelled_and_need_a_group() -> None:
    groups = [group(make_result(variant=variant)) for variant in (None, "E=3")]
    shown = texts(svg(plots.variant_bars(groups)))
    assert {"default", "E=3", "paper (task)"} <= set(shown)
    with pytest.raises(RememberingError, match="no variants"):
        plots.variant_bars([])


def test_names_are_not_interpreted_as_formulas() -> None:
    result = renamed(make_result(experiment=r"$\frac{$ <b>"), r"$\bad$ <i>")
    shown = texts(svg(plots.score_heatmap(group(result))))
    assert any(r"$\bad$ <i>" in text for text in shown)
    assert any(r"$\frac{$ <b>" in text for text in shown)


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    found = group(make_result())
    for folder in ("a", "b"):
        save(plots.accuracy_curves(found), tmp_path / folder, "x")
        save(plots.score_heatmap(found), tmp_path / folder, "y")
    names = ["x.png", "x.svg", "y.png", "y.svg"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names


def test_tables_import_neither_matplotlib_nor_torch() -> None:
    code = (
        "import sys; import remembering.report.tables, remembering.report.markdown; "
        "sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
