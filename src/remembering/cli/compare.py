"""`remember compare`: run several methods on one experiment and print a table."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from remembering.cli.parsing import Flag, parse, parse_seeds
from remembering.cli.text import command_line
from remembering.errors import RememberingError
from remembering.experiments.spec import find


@dataclass(frozen=True)
class Compare:
    """Compare methods on one experiment.

    Finished runs are kept: the same command resumes an interrupted comparison.

    Attributes:
        name: Experiment by name (see remember run --list), or TOML file.
        small: Use smaller settings that finish in minutes on two cores.
        methods: all, or some by name, such as ours,ewc,ranpac; see --list.
        options: Options of methods, such as ewc.strength=100 der.memory=500. They override those of
            the experiment and the defaults.
        seeds: Seeds; the table shows mean and standard deviation.
        backbone: bundled, a folder in hub layout, or a hub name. If None, that of the experiment.
        image_size: Input size in pixels. If None, that of the experiment.
        data: Folder with the data in its published layout. If None, cache, hub or registry.
        out: Folder of the comparison. If None, runs/compare/NAME.
        list: List the methods and exit.
    """

    name: tyro.conf.Positional[str]
    small: Flag = False
    methods: str = "all"
    options: tuple[str, ...] = ()
    seeds: str = "0,1,2"
    backbone: str | None = None
    image_size: int | None = None
    data: str | None = None
    out: Path | None = None
    list: Flag = False


def main(arguments: list[str]) -> int:
    """Run `remember compare` and return its exit code."""
    if "--list" in arguments:
        from remembering.experiments.methods import titles

        width = max(map(len, titles()))
        for method, title in titles().items():
            print(f"{method:{width}}  {title}")
        return 0
    options = parse(Compare, arguments, "compare")
    seeds = parse_seeds(options.seeds)
    if not seeds:
        raise RememberingError("--seeds is empty; give at least one, such as 0")
    variants = find(options.name).variants(options.small)
    if len(variants) > 1:
        raise RememberingError(
            f"{options.name} has variants; methods can only be compared on one setting"
        )
    experiment = next(iter(variants.values()))
    if options.data:
        experiment = replace(experiment, stream=replace(experiment.stream, data=options.data))
    experiment = replace(
        experiment,
        backbone=options.backbone or experiment.backbone,
        image_size=experiment.image_size if options.image_size is None else options.image_size,
    )
    title = find(options.name).name
    out = options.out or Path("runs/compare") / (f"{title}-small" if options.small else title)

    from remembering.cli.terminal import show
    from remembering.experiments.compare import compare
    from remembering.experiments.methods import parse_methods, parse_options
    from remembering.experiments.provenance import command_words
    from remembering.report.collect import collect
    from remembering.report.comparison import comparison_table
    from remembering.runtime.bars import ProgressBars

    chosen = parse_methods(options.methods)
    overrides = parse_options(options.options, chosen)
    try:
        compare(
            title,
            experiment,
            out,
            chosen,
            seeds,
            small=options.small,
            options=overrides,
            command=command_words("compare", arguments),
            progress=ProgressBars(),
        )
    except KeyboardInterrupt:
        line = command_line("compare", arguments)
        print(f"interrupted. Resume with: {line}", file=sys.stderr)
        return 130
    for comparison in collect([out])[1]:
        show(comparison_table(comparison))
    print(f"written to {out}; plot it with: {command_line('report', [str(out)])}")
    return 0
