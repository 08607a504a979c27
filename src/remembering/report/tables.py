"""Tables of experiments.

Each accuracy appears with its routing unit, backbone, data and seeds: the unit is in the row or the
header, the others are in the caption or the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remembering.evaluation.units import unit_size
from remembering.experiments.published import SPLIT_TASKS, TABLE_1
from remembering.experiments.result import RoutingResult, RunResult, UnitResult
from remembering.report.groups import Group, Seeds, Statistic, code_text, count, seed_list
from remembering.report.table import NOTHING, Table, percent, published_text, size


def units_table(group: Group) -> Table:
    """Return accuracy by routing unit, with the correct adapter given, and of the baselines."""
    published, seeds = group.published, len(group.seeds)
    units = set(group.units) | ({published.unit} if published else set())
    rows: list[tuple[str, ...]] = [
        (
            unit_name(unit),
            percent(group.model.accuracy(unit), seeds),
            percent(_model(group, unit, lambda result: result.routing_accuracy), seeds),
            percent(_model(group, unit, lambda result: result.forgetting), seeds)
            if unit == "sample"
            else NOTHING,
            published_text(
                published if published and published.unit == unit else None, source=True
            ),
        )
        for unit in sorted(units, key=unit_size)
    ]
    for name, value in (
        ("correct adapter given", oracle),
        ("routing ablated (most confident adapter)", lambda routing: routing.ablated_after[-1]),
    ):
        found = group.statistic(value)
        if found is not None:
            rows.append(_row(name, percent(found, seeds)))
    rows += [_baseline_row(found, unit, seeds) for found in group.baselines for unit in found.units]
    return Table(
        caption=f"{group.title}: {group.settings}",
        headers=(
            "Routing unit",
            "Accuracy (%)",
            "Routing accuracy (%)",
            "Forgetting (points)",
            "Paper (%)",
        ),
        rows=tuple(rows),
        note=_units_note(group),
    ).without_empty_columns()


def summary_table(groups: Sequence[Group]) -> Table:
    """Return one row per experiment."""
    units = sorted({unit for group in groups for unit in group.units}, key=unit_size)
    rows = tuple(
        (
            group.title,
            group.short_settings,
            *(percent(group.model.accuracy(unit), len(group.seeds)) for unit in units),
            percent(group.statistic(oracle), len(group.seeds)),
            f"{group.published.unit}: {published_text(group.published, source=True)}"
            if group.published
            else NOTHING,
            size(group.first.footprint.adapters),
            total_size(group),
        )
        for group in groups
    )
    headers = (
        "Experiment",
        "Backbone; data; tasks; seeds",
        *(f"{unit} (%)" for unit in units),
        "Correct adapter given (%)",
        "Paper (%)",
        "Adapters",
        "Total",
    )
    note = (
        "Mean accuracy over tasks after the last one, ± standard deviation over seeds. Adapters: "
        "parameters of the adapters alone, the paper's number. Total: everything that must be kept."
    )
    return Table("Accuracy by routing unit", headers, rows, note).without_empty_columns()


def tasks_table(group: Group) -> Table:
    """Return the tasks, the size of their data, and the adapter that serves each at the end."""
    first = group.first
    rows = tuple(
        (
            f"{i}. {task.name}",
            ", ".join(map(str, task.classes)),
            f"{task.train:,}",
            f"{task.test:,}",
            str(task.adapter),
            f"{seconds:.1f}",
        )
        for i, (task, seconds) in enumerate(
            zip(first.tasks, first.seconds_learning, strict=True), start=1
        )
    )
    headers = ("Task", "Classes", "Train images", "Test images", "Adapter", "Learned in (s)")
    return Table(f"{group.title}: tasks in the order learned, seed {first.seed}", headers, rows)


def novelty_table(group: Group) -> Table:
    """Return how well images of new tasks are detected after each task, seed by seed."""
    novelty = [routing.novelty for routing in group.routing]
    rows = tuple(
        (
            str(i + 1),
            *(_number(found.auroc[i], 1, 3) for found in novelty),
            *(_number(found.false_alarms[i], 100, 1) for found in novelty),
        )
        for i in range(group.task_count)
    )
    return Table(
        caption=f"{group.title}: novelty detection; {group.settings}",
        headers=(
            "Tasks learned",
            *(f"AUROC, seed {seed}" for seed in group.seeds),
            *(f"False alarms, seed {seed} (%)" for seed in group.seeds),
        ),
        rows=rows,
        note="AUROC: test images of tasks to come against those of learned tasks, each image "
        "alone. False alarms: test images of learned tasks that are flagged at a target rate of "
        f"{novelty[0].rate:.0%}.",
    )


def domains_table(groups: Sequence[Group]) -> Table:
    """Return the accuracy on each domain after the last one.

    Args:
        groups: Variants of one experiment that learn several domains in some order, or one alone.
    """
    first = groups[0].first
    seeds = sorted({seed for group in groups for seed in group.seeds})
    columns: dict[str, list[Seeds]] = {}
    for group in sorted(groups, key=lambda group: group.task_count == 1):
        alone = group.task_count == 1
        title = "Alone" if alone else group.variant or group.title
        columns.setdefault(title, []).append(group.model)
        for baseline in () if alone else group.baselines:
            columns[f"{title}: {baseline.first.method.title}"] = [baseline]

    def accuracy(result: RunResult, name: str) -> float | None:
        names = (task.name for task in result.tasks)
        return dict(zip(names, result.units["sample"].matrix[-1], strict=True)).get(name)

    def cell(found: Sequence[Seeds], name: str) -> str:
        values = (accuracy(result, name) for member in found for result in member.results)
        return percent(Statistic.of(values), len(seeds))

    names = dict.fromkeys(task.name for group in groups for task in group.first.tasks)
    return Table(
        f"{groups[0].experiment}{' (small)' if groups[0].small else ''}: accuracy on single images "
        f"of each domain (%); {first.backbone}, {first.image_size} px, {seed_list(seeds)}",
        ("Domain", *columns),
        tuple((name, *(cell(found, name) for found in columns.values())) for name in names),
        "After the last domain of the order. "
        f"{code_text(member for found in columns.values() for member in found)}",
    ).without_empty_columns()


def published_table(experiment: str) -> Table | None:
    """Return the paper's Table 1 for this split, or None if the paper has no such column."""
    column = SPLIT_TASKS.get(experiment)
    if column is None:
        return None
    rows = tuple(
        (method, f"{numbers[column].accuracy:.1f} ± {numbers[column].deviation:.2f}")
        for method, numbers in TABLE_1.items()
    )
    return Table(
        caption=f"{column}: average task accuracy as printed in the paper, not reproduced here",
        headers=("Method", "Accuracy (%)"),
        rows=rows,
        note="“Ours” is the Remembering Transformer on ViT-B/16, routed per task; "
        "the paper does not say how the other methods were run.",
    )


def oracle(routing: RoutingResult) -> float | None:
    """Return the accuracy with the correct adapter given, after the last task."""
    return routing.oracle_after[-1]


def unit_name(unit: str) -> str:
    """Return a routing unit with a short explanation.

    >>> unit_name("group_32")
    'group_32 (32 images of one source)'
    """
    if unit == "sample":
        return "sample (each image alone)"
    if unit == "task":
        return "task (whole test set of a task)"
    return f"{unit} ({unit_size(unit):.0f} images of one source)"


def total_size(group: Group) -> str:
    """Return everything that must be kept: parameters, and the replay memory if there is one."""
    footprint = group.first.footprint
    replay = footprint.replay_bytes
    return size(footprint.parameters) + (f" + {replay / 1e6:.2f} MB replay" if replay else "")


def _model(
    group: Group, unit: str, value: Callable[[UnitResult], float | None]
) -> Statistic | None:
    return group.model.statistic(lambda r: value(r.units[unit]) if unit in r.units else None)


def _number(value: float | None, scale: float, digits: int) -> str:
    return NOTHING if value is None else f"{scale * value:.{digits}f}"


def _row(
    name: str, accuracy: str, routing_accuracy: str = NOTHING, forgetting: str = NOTHING
) -> tuple[str, ...]:
    return (name, accuracy, routing_accuracy, forgetting, NOTHING)


def _baseline_row(baseline: Seeds, unit: str, seeds: int) -> tuple[str, ...]:
    """Return the row of a method under a routing unit, which is named unless it is `sample`."""

    def of(value: Callable[[UnitResult], float | None]) -> str:
        return percent(baseline.statistic(lambda result: value(result.units[unit])), seeds)

    return _row(
        baseline.first.method.title + ("" if unit == "sample" else f" ({unit})"),
        of(lambda result: result.accuracy),
        of(lambda result: result.routing_accuracy),
        of(lambda result: result.forgetting) if unit == "sample" else NOTHING,
    )


def _units_note(group: Group) -> str:
    note = f"Mean over {count(group.task_count, 'task')} after the last one"
    note += ", ± standard deviation over seeds." if len(group.seeds) > 1 else "."
    note += " In the rows below the routing units each image is answered alone, unless a row names "
    note += "another unit."
    note += f" {code_text([group.model, *group.baselines])}"
    if group.published:
        note += " The paper's number was reached with ViT-B/16 pretrained on ImageNet-21k, on all "
        note += "the data."
    return note
