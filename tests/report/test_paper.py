"""The paper's footprint column and figures, from code and results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import ViTConfig

from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.experiments.published import FOOTPRINTS, TABLE_2
from remembering.experiments.result import RunResult
from remembering.learner import adapter_parameters
from remembering.report.collect import group_comparisons, group_runs
from remembering.report.figure_files import Figures
from remembering.report.paper import footprint_table, paper_sections, published_groups

from .example import GAUSSIAN, make_baseline, make_result, published_model, routing_result


def test_the_footprint_column_of_table_2() -> None:
    table = footprint_table()
    assert "73,728 parameters per adapter" in table.caption
    assert table.rows == (
        ("5", "368,640", "0.37M", "0.37M", "99.3 ± 0.24"),
        ("3", "221,184", "0.22M", "0.22M", "93.2 ± 0.72"),
        ("2", "147,456", "0.15M", "0.15M", "87.1 ± 0.85"),
    )
    printed = {item.method: item.millions for item in FOOTPRINTS}
    for adapters in TABLE_2:
        computed = adapters * adapter_parameters(layers=12, dim=768, rank=1)
        assert round(computed / 1e6, 2) == printed[f"Ours, E = {adapters}"]


def test_the_default_configuration_of_a_vit_is_the_papers_backbone() -> None:
    config = ViTConfig()
    assert (config.num_hidden_layers, config.hidden_size) == (12, 768)


@pytest.mark.parametrize("rank", [1, 3])
def test_the_formula_counts_the_parameters_of_an_adapter(rank: int, backbone: Backbone) -> None:
    adapter = Adapter.new(backbone, rank, 0, torch.Generator())
    assert adapter.parameters == adapter_parameters(backbone.depth, backbone.dim, rank)


def compared(result: RunResult, experiment: str) -> RunResult:
    command = ("compare", experiment, "--small")
    return replace(result, config=replace(result.config, experiment=experiment, command=command))


def test_every_figure_of_the_paper_is_drawn_from_records(tmp_path: Path) -> None:
    results = [
        compared(result, experiment)
        for experiment in ("cifar10-5", "permuted-mnist-10")
        for result in (published_model(), make_baseline("joint", [None] * 4 + [0.7]))
    ]
    figures = Figures(tmp_path / "figures", tmp_path / "results.md")
    text = "\n".join(paper_sections([], group_comparisons(results), figures))
    assert sorted(path.stem for path in figures.files) == [
        "compare-cifar10-5-small-bundled-footprint",
        "compare-permuted-mnist-10-small-bundled-accuracy",
        "paper-cifar10-5-small-bundled-accuracy",
        "paper-cifar10-5-small-bundled-heat-map",
        "paper-permuted-mnist-10-small-bundled-accuracy",
        "paper-permuted-mnist-10-small-bundled-heat-map",
    ]
    assert "reconstruction error of the router" in text
    assert "Not recorded yet." not in text
    drawing = figures.files[tmp_path / "figures" / "paper-cifar10-5-small-bundled-accuracy.svg"]
    for label in ("90.0 task", "30.0 sample", "44.0 routing ablated", "70.0 JOINT"):
        assert label in drawing.decode()


def test_only_the_papers_configuration_is_drawn(tmp_path: Path) -> None:
    gaussian = make_result(2, routing=routing_result(2, router=GAUSSIAN))
    assert published_groups(group_runs([gaussian]), []) == []
    autoencoder = make_result(experiment="paper/cifar10-5")
    assert len(published_groups(group_runs([autoencoder]), [])) == 1
    figures = Figures(tmp_path, tmp_path / "results.md")
    text = paper_sections(group_runs([gaussian]), [], figures)
    assert text.count("Not recorded yet.") == 3
    assert not figures.files


def test_figures_of_the_same_name_do_not_replace_each_other(tmp_path: Path) -> None:
    figures = Figures(tmp_path / "figures", tmp_path / "docs" / "x.md")
    groups = group_runs([make_result(variant="E=3"), make_result(variant="e 3")])
    paper_sections(groups, [], figures)
    names = [path.stem for path in figures.files if "accuracy" in path.stem]
    assert names == [f"cifar10-5-e-3-small-bundled-accuracy{end}" for end in ("", "-2")]
    assert "(../figures/" in "".join(paper_sections(groups, [], figures))
    assert len(figures.files) == 4
