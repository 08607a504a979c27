"""Results as plain tables: made once, shown in the terminal, in Markdown and in HTML.

No accuracy stands without its routing unit, backbone, data and seeds: the unit is in the row or
the header, the rest in the caption or the row.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich import table as rich_table
from rich.text import Text

from remembering.report.published import SPLIT_TASKS, TABLE_1
from remembering.report.results import Group, Statistic, count, unit_size

NOTHING = "–"

BASELINE_NAMES = {
    "joint": "joint training",
    "finetune": "sequential fine-tuning",
    "gaussian": "Gaussians on the frozen backbone",
}


@dataclass(frozen=True)
class Table:
    """A caption, headers, rows of text whose first cell names the row, and a note below."""

    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def to_rich(self, columns: int | None = None) -> rich_table.Table:
        """For the terminal, all columns or so many; numbers and words of headers stay whole."""
        shown = rich_table.Table(
            title=Text(self.caption, style="bold"),
            caption=Text(self.note) if self.note else None,
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
        )
        for i, header in enumerate(self.headers[:columns]):
            numeric = i > 0 and self._is_numeric(i)
            whole = [row[i] for row in self.rows] if numeric else []
            shown.add_column(
                Text(header),
                justify="right" if numeric else "left",
                overflow="fold",
                min_width=max(map(len, [*whole, *header.split()])),
            )
        for row in self.rows:
            shown.add_row(*map(Text, row[:columns]))
        return shown

    def to_markdown(self) -> str:
        """For docs: a pipe table, with the caption above and the note below."""
        rule = [
            "---:" if i > 0 and self._is_numeric(i) else "---" for i in range(len(self.headers))
        ]
        lines = [[markdown_text(cell) for cell in row] for row in (self.headers, *self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])
        note = f"\n\n{markdown_text(self.note)}" if self.note else ""
        return f"**{markdown_text(self.caption)}**\n\n{table}{note}\n"

    def to_html(self) -> str:
        """For the page: a caption, and scopes for screen readers; all text escaped."""
        caption = html.escape(self.caption)
        number = [
            ' class="number"' if self._is_numeric(i) else "" for i in range(len(self.headers))
        ]
        head = "".join(
            f'<th scope="col"{kind}>{html.escape(header)}</th>'
            for kind, header in zip(["", *number[1:]], self.headers, strict=True)
        )
        body = "".join(
            f'<tr><th scope="row">{html.escape(row[0])}</th>'
            + "".join(
                f"<td{kind}>{html.escape(cell).replace(' ± ', '&nbsp;±&nbsp;')}</td>"
                for kind, cell in zip(number[1:], row[1:], strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        wide = ' class="wide"' if len(self.headers) > 8 else ""
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        return (
            f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}">'
            f"<table{wide}><caption>{caption}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
        )

    def _is_numeric(self, column: int) -> bool:
        """Numbers are set flush right, so that digits stand below digits."""
        cells = [row[column] for row in self.rows]
        return all(cell == NOTHING or re.match(r"(\w+: )?[-−]?\d", cell) for cell in cells)


def units_table(group: Group) -> Table:
    """What one setting reaches, by routing unit, beside the right adapter and the baselines."""
    published = group.published
    rows: list[tuple[str, ...]] = [
        (
            unit_name(unit),
            percent(group.statistic("accuracy", unit), group),
            percent(group.statistic("routing_accuracy", unit), group),
            percent(group.statistic("forgetting"), group) if unit == "sample" else NOTHING,
            percent(group.statistic("compared", "accuracy", unit), group),
            percent(group.statistic("compared", "routing_accuracy", unit), group),
            published_number(published) if published and published["unit"] == unit else NOTHING,
        )
        for unit in _units([group], with_published=True)
    ]
    alone = group.statistic("router_alone_accuracy")
    if alone is not None:
        rows.append(_row("router alone (no task's adapter)", percent(alone, group)))
    rows.append(
        _row("right adapter given", percent(group.statistic("oracle_task_accuracy"), group))
    )
    ablated = group.statistic("ablated_accuracy")
    if ablated is not None:
        rows.append(_row("routing ablated (most confident adapter)", percent(ablated, group)))
    for name in group.baselines:
        rows.append(
            _row(
                BASELINE_NAMES.get(name, name),
                percent(group.statistic("baselines", name, "accuracy"), group),
                percent(group.statistic("baselines", name, "forgetting"), group),
            )
        )
    return _without_empty_columns(
        Table(
            caption=f"{group.title}: {group.settings}",
            headers=(
                "Routing unit",
                "Accuracy (%)",
                "Routing accuracy (%)",
                "Forgetting (points)",
                f"Accuracy, {group.compared} router (%)",
                f"Routing accuracy, {group.compared} router (%)",
                "Paper (%)",
            ),
            rows=tuple(rows),
            note=_units_note(group),
        )
    )


def summary_table(groups: Sequence[Group]) -> Table:
    """All settings, one row each, with everything that a number needs to be understood."""
    units = _units(groups)
    rows = tuple(
        (
            group.title,
            group.short_settings,
            *(percent(group.statistic("accuracy", unit), group) for unit in units),
            percent(group.statistic("oracle_task_accuracy"), group),
            f"{group.published['unit']}: {published_number(group.published)}"
            if group.published
            else NOTHING,
            size(group.first["footprint"]["adapters"]),
            kept(group),
        )
        for group in groups
    )
    headers = (
        "Experiment",
        "Backbone; data; tasks; seeds",
        *(f"{unit} (%)" for unit in units),
        "Right adapter given (%)",
        "Paper (%)",
        "Adapters",
        "Kept",
    )
    note = (
        "Mean accuracy over tasks after the last one, ± deviation over seeds. Adapters: parameters "
        "of the adapters alone, as the paper counts. Kept: everything that must be kept."
    )
    return _without_empty_columns(Table("Accuracy by routing unit", headers, rows, note))


def tasks_table(group: Group) -> Table:
    """What each task was, how much data it had, and which adapter serves it in the end."""
    first = group.first
    rows = tuple(
        (
            f"{i}. {task['name']}",
            ", ".join(map(str, task["classes"])),
            f"{task['train']:,}",
            f"{task['test']:,}",
            str(task["adapter"]),
            f"{seconds:.1f}",
        )
        for i, (task, seconds) in enumerate(
            zip(first["tasks"], first["seconds_learning"], strict=True), start=1
        )
    )
    headers = (
        "Task",
        "Classes",
        "Train images",
        "Test images",
        "Adapter",
        "Learned in (s)",
    )
    return Table(f"{group.title}: tasks in the order learned, seed {first['seed']}", headers, rows)


def novelty_table(group: Group) -> Table | None:
    """How well tasks to come are told from learned ones after each task, seed by seed."""
    novelty = [results.get("novelty") for results in group.results]
    known = [(seed, found) for seed, found in zip(group.seeds, novelty, strict=True) if found]
    if not known:
        return None
    rate = known[0][1]["rate"]
    rows = tuple(
        (
            str(i + 1),
            *(_figure(found["auroc"][i], 1, 3) for _, found in known),
            *(_figure(found["false_alarms"][i], 100, 1) for _, found in known),
        )
        for i in range(group.task_count)
    )
    return Table(
        caption=f"{group.title}: have I seen this before? {group.settings}",
        headers=(
            "Tasks learned",
            *(f"AUROC, seed {seed}" for seed, _ in known),
            *(f"False alarms, seed {seed} (%)" for seed, _ in known),
        ),
        rows=rows,
        note="AUROC: test images of tasks still to come against those of learned ones, each image "
        f"alone. False alarms: learned ones flagged where {rate:.0%} were asked for.",
    )


def _figure(value: float | None, scale: float, digits: int) -> str:
    return NOTHING if value is None else f"{scale * value:.{digits}f}"


def published_table(experiment: str) -> Table | None:
    """The paper's Table 1 for this split, or None if the paper has no such column."""
    column = SPLIT_TASKS.get(experiment)
    if column is None:
        return None
    rows = tuple(
        (method, f"{numbers[column].accuracy:.1f} ± {numbers[column].deviation:.2f}")
        for method, numbers in TABLE_1.items()
    )
    return Table(
        caption=f"{column}: average task accuracy as printed in the paper, not rerun here",
        headers=("Method", "Accuracy (%)"),
        rows=rows,
        note="“Ours” is the Remembering Transformer on ViT-B/16, routed per task; "
        "the paper does not say how the other methods were run.",
    )


def percent(value: Statistic | None, group: Group) -> str:
    """In percent with one decimal, ± the deviation; says so when some seeds have no such number."""
    if value is None:
        return NOTHING
    mean = f"{100 * value.mean:.1f}"
    text = "0.0" if mean == "-0.0" else mean
    if value.deviation is not None:
        text += f" ± {100 * value.deviation:.1f}"
    if value.n < len(group.seeds):
        text += f" ({value.n} of {count(len(group.seeds), 'seed')})"
    return text


def published_number(published: dict[str, object]) -> str:
    """A number of the paper in the paper's own precision, with the table it stands in."""
    deviation = published["deviation"]
    spread = "" if deviation is None else f" ± {deviation}"
    return f"{published['accuracy']}{spread} ({published['where']})"


def unit_name(unit: str) -> str:
    """A routing unit, with what it means in a few words.

    >>> unit_name("group_32")
    'group_32 (32 images of one source)'
    """
    if unit == "sample":
        return "sample (each image alone)"
    if unit == "task":
        return "task (whole test set of a task)"
    return f"{unit} ({unit_size(unit):.0f} images of one source)"


def size(parameters: int) -> str:
    """A number of parameters, short enough for a table.

    >>> size(512), size(73_728), size(368_640)
    ('512', '73.7k', '0.37M')
    """
    if parameters < 10_000:
        return f"{parameters:,}"
    return f"{parameters / 1e3:.1f}k" if parameters < 100_000 else f"{parameters / 1e6:.2f}M"


def kept(group: Group) -> str:
    """Everything that must be kept: parameters, and the replay memory if there is one."""
    footprint = group.first["footprint"]
    replay = footprint["replay_bytes"]
    text = size(footprint["total_parameters"])
    return text + (f" + {replay / 1e6:.2f} MB replay" if replay else "")


def markdown_text(text: str) -> str:
    """One line of Markdown that shows exactly this text."""
    line = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]<>|#&~])", r"\\\1", line)


def _units(groups: Sequence[Group], with_published: bool = False) -> list[str]:
    units = {unit for group in groups for unit in group.units}
    if with_published:
        units |= {group.published["unit"] for group in groups if group.published}
    return sorted(units, key=unit_size)


def _row(name: str, accuracy: str, forgetting: str = NOTHING) -> tuple[str, ...]:
    return (name, accuracy, NOTHING, forgetting, NOTHING, NOTHING, NOTHING)


def _units_note(group: Group) -> str:
    note = f"Mean over {count(group.task_count, 'task')} after the last one"
    note += ", ± deviation over seeds." if len(group.seeds) > 1 else "."
    note += " Below the routing units nothing is routed: each image is answered alone."
    if group.statistic("router_alone_accuracy") is not None:
        note += " Above, router and adapter answer together; a right adapter given answers alone."
    if group.published:
        note += " The paper's number was reached with ViT-B/16 pretrained on ImageNet-21k, on all "
        note += "the data."
    return note


def _without_empty_columns(table: Table) -> Table:
    used = [
        i
        for i in range(len(table.headers))
        if i == 0 or any(row[i] != NOTHING for row in table.rows)
    ]
    return Table(
        table.caption,
        tuple(table.headers[i] for i in used),
        tuple(tuple(row[i] for i in used) for row in table.rows),
        table.note,
    )
