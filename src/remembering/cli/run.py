"""`remember run`: run an experiment, with one or several seeds."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from remembering.cli.parsing import HELP_ALL, Flag, parse, parse_seeds, unused_folder
from remembering.cli.text import command_line
from remembering.errors import RememberingError
from remembering.experiments.spec import Experiment, find, names, with_seed

if TYPE_CHECKING:
    from remembering.runtime.distributed import Distributed

_BASIC = ("name", "small", "seeds", "out", "resume", "list")


@dataclass(frozen=True)
class Run:
    """Run an experiment by name or from a TOML file.

    Every setting of the experiment is an option, too: see remember run NAME --help-all.

    Attributes:
        name: Name (see --list) or TOML file.
        small: Use smaller settings that finish in minutes on two cores.
        seeds: Several seeds, such as 0,1,2: one run per seed.
        out: Folder of the run. If None, runs/NAME.
        resume: Resume the run in the folder.
        save_steps: Save progress every so many training steps. It is always saved after each epoch.
        tracker: Log losses and accuracies to tensorboard (files in the folder logs of the run),
            wandb, mlflow, or another tracker of accelerate.
        list: List the experiments and exit.
    """

    name: tyro.conf.Positional[str] = ""
    small: Flag = False
    seeds: str = ""
    out: Path | None = None
    resume: Flag = False
    save_steps: int = 0
    tracker: str | None = None
    list: Flag = False
    experiment: Annotated[Experiment, tyro.conf.arg(name="")] = field(default_factory=Experiment)


def main(arguments: list[str]) -> int:
    """Run `remember run` and return its exit code.

    The arguments are parsed once per variant of the experiment, because the settings of the variant
    are the defaults of the options.
    """
    if "--list" in arguments:
        width = max(map(len, names()))
        for name in names():
            print(f"{name:{width}}  {find(name).description}")
        return 0
    name = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    if not name and {"-h", "--help", HELP_ALL}.isdisjoint(arguments):
        raise RememberingError(
            "name an experiment first: remember run NAME [OPTIONS]; remember run --list shows all"
        )
    variants: dict[str | None, Experiment] = (
        find(name).variants("--small" in arguments) if name else {None: Experiment()}
    )
    runs = {
        variant: parse(
            Run, arguments, "run", default=Run(name=name, experiment=experiment), basic=_BASIC
        )
        for variant, experiment in variants.items()
    }

    from remembering.runtime.distributed import launched

    with launched() as distributed:
        return _run_variants(runs, arguments, distributed)


def _run_variants(
    runs: dict[str | None, Run], arguments: list[str], distributed: Distributed
) -> int:
    from remembering.cli.terminal import show
    from remembering.experiments.compare import run_experiment
    from remembering.experiments.provenance import command_words
    from remembering.report.collect import group_runs
    from remembering.report.tables import units_table
    from remembering.runtime.bars import ProgressBars
    from remembering.runtime.progress import SILENT

    options = next(iter(runs.values()))
    seeds = parse_seeds(options.seeds) or [options.experiment.learning.seed]
    title = find(options.name).name
    base = Path("runs") / (f"{title}-small" if options.small else title)
    choose = _last_used_folder if options.resume else unused_folder
    out = options.out or distributed.on_main(lambda: choose(base))
    single = len(runs) == 1 and len(seeds) == 1
    for variant, parsed in runs.items():
        results = []
        for seed in seeds:
            folder = out if single else out / _folder_name(variant) / f"seed-{seed}"
            try:
                results += run_experiment(
                    title,
                    with_seed(parsed.experiment, seed),
                    folder,
                    variant=variant,
                    small=options.small,
                    command=command_words("run", arguments),
                    resume=options.resume or not single,
                    save_steps=options.save_steps,
                    progress=ProgressBars() if distributed.main else SILENT,
                    tracker=options.tracker,
                )
            except KeyboardInterrupt:
                where = [] if options.out else ["--out", str(out)]
                again = [*arguments, *where, *([] if options.resume else ["--resume"])]
                if distributed.main:
                    line = command_line("run", again)
                    print(f"interrupted. Resume with: {line}", file=sys.stderr)
                raise SystemExit(130) from None  # do not wait for the other processes
        if distributed.main:
            show(units_table(*group_runs(results)))
    if distributed.main:
        print(f"written to {out}; plot it with: {command_line('report', [str(out)])}")
    return 0


def _last_used_folder(folder: Path) -> Path:
    """Return the last folder that `unused_folder` returned before."""
    number, candidate, latest = 2, folder, folder
    while candidate.exists():
        latest = candidate
        number, candidate = number + 1, folder.with_name(f"{folder.name}-{number}")
    return latest


def _folder_name(variant: str | None) -> str:
    return "".join(c if c.isalnum() or c in "=-" else "-" for c in variant or "")
