"""Figures: they can be drawn for every valid result, are stable, and import nothing early."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from remembering.errors import RememberingError
from remembering.report import plots
from remembering.report.results import Group

from .example import make_results

BARE: dict[str, Any] = {
    "baselines": {},
    "ablated_after": None,
    "ablated_accuracy": None,
    "published": None,
}


def texts(svg: str) -> list[str]:
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(item.itertext()) for item in found]


@pytest.mark.parametrize(
    "runs",
    [
        [make_results()],
        [make_results(seed=0), make_results(seed=1)],
        [make_results(task_count=1, forgetting=None)],
        [make_results(task_count=50)],
        [make_results(**BARE)],
    ],
    ids=["one seed", "two seeds", "one task", "fifty tasks", "nothing to compare with"],
)
def test_every_figure_is_drawn(runs: list[dict[str, Any]], tmp_path: Path) -> None:
    group = Group.of(runs)
    for name, figure in {
        "curves": plots.accuracy_curves(group),
        "heatmap": plots.reconstruction_heatmap(group),
        "footprint": plots.footprint_chart([group]),
        "variants": plots.variant_bars([group, group]),
    }.items():
        png, svg = plots.save(figure, tmp_path, name)
        with Image.open(png) as image:
            assert min(image.size) > 300
        assert len(texts(svg.read_text("utf-8"))) > 3


def test_curves_name_every_line() -> None:
    shown = texts(plots.svg(plots.accuracy_curves(Group.of([make_results()]))))
    for label in (
        "sample",
        "group_32",
        "group_128",
        "task",
        "right adapter given",
        "routing ablated",
        "joint training",
        "sequential fine-tuning",
    ):
        assert label in shown


def test_curve_shows_the_mean_in_percent() -> None:
    runs = [make_results(task_count=2, seed=seed) for seed in (0, 1)]
    for run, end in zip(runs, (0.5, 0.7), strict=True):
        run["accuracy_after"]["sample"] = [1.0, end]
    (axes,) = plots.accuracy_curves(Group.of(runs)).axes
    line = next(line for line in axes.lines if line.get_label() == "sample")
    assert np.allclose(np.asarray(line.get_ydata(), dtype=float), [100, 60])


def test_heatmap_is_scaled_in_each_row_before_seeds_are_averaged() -> None:
    runs = [make_results(task_count=2, seed=seed) for seed in (0, 1)]
    runs[0]["reconstruction_errors"] = [[1.0, 3.0], [20.0, 10.0]]
    runs[1]["reconstruction_errors"] = [[5.0, 1.0], [7.0, 7.0]]
    shown = texts(plots.svg(plots.reconstruction_heatmap(Group.of(runs))))
    # rows scaled: seed 0 [[0, 1], [1, 0]], seed 1 [[1, 0], [0, 0]]; a flat row has no spread
    assert [text for text in shown if text in ("0.00", "0.50", "1.00")] == [
        "0.50",
        "0.50",
        "0.50",
        "0.00",
    ]


def test_heatmap_names_tasks_only_if_they_mean_the_same_in_every_seed() -> None:
    other = make_results(seed=1)
    other["tasks"][0]["name"] = "digits 7-3"
    same = texts(plots.svg(plots.reconstruction_heatmap(Group.of([make_results()]))))
    mixed = texts(plots.svg(plots.reconstruction_heatmap(Group.of([make_results(), other]))))
    assert any("digits 2-3" in text for text in same)
    assert not any("digits" in text for text in mixed)


def test_cells_are_annotated_up_to_ten_tasks() -> None:
    few = texts(plots.svg(plots.reconstruction_heatmap(Group.of([make_results(task_count=10)]))))
    many = texts(plots.svg(plots.reconstruction_heatmap(Group.of([make_results(task_count=11)]))))
    assert few.count("0.00") == 10
    assert "0.00" not in many


def test_heatmap_needs_errors() -> None:
    group = Group.of([make_results(reconstruction_errors=[])])
    assert not plots.has_reconstruction_errors(group)
    with pytest.raises(RememberingError, match="no reconstruction errors"):
        plots.reconstruction_heatmap(group)


def test_footprint_stands_beside_the_papers() -> None:
    shown = texts(plots.svg(plots.footprint_chart([Group.of([make_results()])])))
    for text in ("11.18M (Section 4.2)", "0.22M (Table 2)", "20.5k", "23.1k + 0.40 MB replay"):
        assert text in shown


def test_variants_are_labelled_and_need_a_group() -> None:
    groups = [Group.of([make_results(variant=variant)]) for variant in (None, "E=3")]
    shown = texts(plots.svg(plots.variant_bars(groups)))
    assert {"default", "E=3", "paper (task)"} <= set(shown)
    with pytest.raises(RememberingError, match="no variants"):
        plots.variant_bars([])


def test_names_are_shown_as_they_are_not_as_formulas() -> None:
    run = make_results(experiment=r"$\frac{$ <b>")
    run["tasks"][0]["name"] = r"$\bad$ <i>"
    shown = texts(plots.svg(plots.reconstruction_heatmap(Group.of([run]))))
    assert any(r"$\bad$ <i>" in text for text in shown)
    assert any(r"$\frac{$ <b>" in text for text in shown)


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    group = Group.of([make_results()])
    for folder in ("a", "b"):
        plots.save(plots.accuracy_curves(group), tmp_path / folder, "x")
        plots.save(plots.reconstruction_heatmap(group), tmp_path / folder, "y")
    for name in ("x.png", "x.svg", "y.png", "y.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "x.png",
        "x.svg",
        "y.png",
        "y.svg",
    ]


def test_tables_do_not_import_matplotlib() -> None:
    code = (
        "import sys; import remembering.report.tables, remembering.report.markdown; "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
