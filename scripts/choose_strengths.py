"""Select the options of baselines on held-out training images, all by the same search.

    python scripts/choose_strengths.py digits-5
    python scripts/choose_strengths.py cifar10-5 --small --backbone FOLDER --methods ewc,si
    python scripts/choose_strengths.py permuted-mnist-10 --small --methods si --values 0.01,0.1,1

Uses the experiment's own settings in class orders that no result uses (seed 10): some training
images of each class are learned, 30 others are predicted after the last task. Test images are not
opened. Where a grid has several options, one after the other is varied, with the best values of
those before it. Trials are kept in results/search-EXPERIMENT.json.gz, and those that it contains
are not repeated. Copy the selected options, printed at the end, to `options` of the experiment's
file and the table to docs/baselines.md; tests compare them with the record. Options of joint
training: scripts/choose_joint.py.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from remembering.experiments.search import FIRST_SEED, Search, Trial, record_path
from remembering.experiments.spec import Experiment, find

GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "ewc": {"strength": (1e6, 1e4, 1e5, 1e7, 1e8, 1e9, 1e10)},
    "online_ewc": {"strength": (1e6, 1e4, 1e5, 1e7, 1e8, 1e9, 1e10)},
    "si": {"strength": (1.0, 0.01, 0.1, 10.0, 100.0, 1000.0)},
    "lwf": {"strength": (1.0, 3.0, 10.0)},
    "owm": {"alpha": (0.1, 0.01, 0.3, 1.0, 3.0)},
    "hypernet": {"strength": (0.01, 0.001, 0.1)},
    "mnemonics": {"lr": (3e-4, 1e-4, 1e-3)},
    "supsup": {"g": (0.0, 1.0)},
    "der": {"alpha": (0.1, 0.5), "beta": (0.5, 1.0)},
    "clom": {"contrast": (1.0, 0.3, 3.0)},
    "bir_si": {"strength": (1.0, 0.1, 10.0)},
    "pass": {"replay": (1.0, 10.0), "distil": (10.0, 1.0)},
    "il2a": {"replay": (1.0, 10.0), "distil": (10.0, 1.0)},
    "ssre": {"replay": (1.0, 10.0), "distil": (10.0, 1.0)},
    "fetril": {"c": (1.0, 0.1, 10.0)},
    "slda": {"shrinkage": (1e-4, 1e-3, 1e-2, 1e-1)},
    "slda-our-features": {"shrinkage": (1e-4, 1e-3, 1e-2, 1e-1)},
}
"""Values of options by method; the search starts from the first of each.

Methods that are missing have no option that changes how they learn, or select it themselves."""


def main() -> None:
    parser = parser_of_search(__doc__.splitlines()[0])
    parser.add_argument("--methods", help="comma-separated names; all if omitted")
    parser.add_argument("--values", help="comma-separated values that replace those of the option")
    parser.add_argument("--per-class", type=int, help="training images per class")
    parser.add_argument("--seeds", default=str(FIRST_SEED))
    arguments = parser.parse_args()
    methods = arguments.methods.split(",") if arguments.methods else list(GRIDS)
    if unknown := sorted(set(methods) - set(GRIDS)):
        parser.error(f"there are no values for '{unknown[0]}'; known are {', '.join(GRIDS)}")
    grids = {method: GRIDS[method] for method in methods}
    if arguments.values:
        if any(len(grid) > 1 for grid in grids.values()):
            parser.error("--values is for methods with one option")
        values = tuple(float(value) for value in arguments.values.split(","))
        grids = {method: dict.fromkeys(grid, values) for method, grid in grids.items()}
    experiment = read_experiment(arguments)
    if arguments.per_class:
        stream = replace(experiment.stream, per_class=arguments.per_class)
        experiment = replace(experiment, stream=stream)
    search = new_search(arguments, experiment)
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    for method, grid in grids.items():
        search.coordinate_search(method, grid, seeds)
    print_record(search)


def parser_of_search(description: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments that all searches share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("experiment")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--backbone", help="in place of that of the experiment")
    parser.add_argument("--data", help="folder with the data in its published layout")
    parser.add_argument("--results", type=Path, default=Path("results"))
    return parser


def read_experiment(arguments: argparse.Namespace) -> Experiment:
    """Return the experiment that the arguments name."""
    experiment = next(iter(find(arguments.experiment).variants(arguments.small).values()))
    return replace(
        experiment,
        backbone=arguments.backbone or experiment.backbone,
        stream=replace(experiment.stream, data=arguments.data or experiment.stream.data),
    )


def new_search(arguments: argparse.Namespace, experiment: Experiment) -> Search:
    """Return a search that prints its trials."""
    path = record_path(arguments.results, arguments.experiment, arguments.small)
    return Search(arguments.experiment, experiment, arguments.small, path, report=_print)


def print_record(search: Search) -> None:
    """Print all trials for docs/baselines.md, and the best options for the experiment's file."""
    print(search.record.table())
    for method in dict.fromkeys(trial.method for trial in search.record.trials):
        for name, value in search.record.best(method).items():
            print(f'"{method}.{name}={value:g}",')


def _print(trial: Trial) -> None:
    options = ", ".join(f"{name} = {value:g}" for name, value in trial.options.items())
    result = f"{100 * trial.accuracy:.1f} % with {trial.images} images, seed {trial.seed}"
    print(f"{trial.method}, {options}: {result}, in {trial.seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
