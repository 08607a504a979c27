"""The paper's figures and its footprint column, from results of the paper's configuration."""

from __future__ import annotations

from collections.abc import Sequence

from remembering.experiments.published import FOOTPRINTS, TABLE_2
from remembering.learner import adapter_parameters
from remembering.report.comparison import Comparison
from remembering.report.figure_files import Figures
from remembering.report.groups import Group
from remembering.report.table import Table, published_text, size

LAYERS, DIM, RANK = 12, 768, 1
"""ViT-B/16, and the rank that Table 2 implies."""


def footprint_table() -> Table:
    """Return the footprint column of Table 2: computed, and as printed."""
    one = adapter_parameters(LAYERS, DIM, RANK)
    printed = {item.method: item.millions for item in FOOTPRINTS}
    rows = tuple(
        (
            str(adapters),
            f"{adapters * one:,}",
            size(adapters * one),
            f"{printed[f'Ours, E = {adapters}']:.2f}M",
            published_text(accuracy),
        )
        for adapters, accuracy in TABLE_2.items()
    )
    return Table(
        f"Footprint of Table 2: ViT-B/16, rank {RANK}, {one:,} parameters per adapter",
        ("Adapters E", "Parameters", "Rounded", "As printed", "Accuracy as printed (%)"),
        rows,
        f"4 projections · {LAYERS} layers · 2 · {DIM} dimensions · rank {RANK} = {one:,}. "
        "Autoencoders, heads and replay images are not counted, as in the paper.",
    )


def paper_sections(
    groups: Sequence[Group], comparisons: Sequence[Comparison], figures: Figures
) -> list[str]:
    """Return Markdown with the figures of the paper that can be drawn from some results."""
    from remembering.report.comparison_plots import method_curves
    from remembering.report.footprint import footprint_of_methods
    from remembering.report.matrices import router_scores
    from remembering.report.plots import accuracy_curves

    curves: list[str] = []
    permuted: list[str] = []
    maps: list[str] = []
    for group in published_groups(groups, comparisons):
        # In a comparison, the paper's configuration is one of several methods.
        alone = group in groups
        title = group.title if alone else f"{group.title}, as published"
        name = group.slug if alone else f"paper-{group.slug}"
        drawn = figures.add(accuracy_curves(group, title), f"{name}-accuracy")
        (permuted if _is_permuted(group) else curves).append(drawn)
        scores = router_scores(title, group.short_settings, group.model)
        if scores:
            maps.append(figures.add(scores, f"{name}-heat-map"))
    permuted += [
        figures.add(method_curves(found), f"{found.slug}-accuracy")
        for found in comparisons
        if _is_permuted(found)
    ]
    charts = [
        (chart, comparison.slug)
        for comparison in comparisons
        if comparison.experiment == "cifar10-5" and (chart := footprint_of_methods(comparison))
    ]
    parts = {
        "Accuracy curves": curves,
        "Memory footprint": [
            *(figures.add(chart, f"{name}-footprint") for chart, name in charts),
            footprint_table().to_markdown().strip(),
        ],
        "Permutation tasks": permuted,
        "Heat map": maps,
    }
    return [
        "## Figures of the paper",
        "Drawn from the records of the paper's configuration, at the scale that they name. "
        "Accuracy curves: by routing unit, with the correct adapter given, with routing ablated, "
        "and joint training (the oracle) if it is recorded. Heat maps: mean score of the test "
        "images of each task under the expert of each task, 0–1 per row.",
        *(
            part
            for name, found in parts.items()
            for part in (f"### {name}", *(found or ["Not recorded yet."]))
        ),
    ]


def _is_permuted(found: Group | Comparison) -> bool:
    return found.experiment.rpartition("/")[2].startswith("permuted-mnist")


def published_groups(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> list[Group]:
    """Return the results of the paper's configuration, of both commands."""
    found = [group for group in groups if group.routing[0].router.settings.kind == "autoencoder"]
    for comparison in comparisons:
        methods = {row.seeds.method: row.seeds for row in comparison.rows}
        ours = methods.get("ours-published")
        if ours and all(result.routing for result in ours.results):
            found.append(Group(ours, tuple(s for n, s in methods.items() if s is not ours)))
    return found
