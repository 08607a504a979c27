"""Select rank, epochs, augmentation and learning rate of joint training on training images.

    python scripts/choose_joint.py digits-5
    python scripts/choose_joint.py cifar10-5 --small --backbone FOLDER --budget 48000
    python scripts/choose_joint.py cifar100-10 --small --backbone FOLDER --data FOLDER

One option after the other is varied, with the best values of those before it (`AXES`). Of the
training images, 30 per class are held out to compare accuracies; test images are not opened, and
the class order is none that results use (seed 10). The budget is the number of image passes of the
whole search (a core trains about 40 images per second through a ViT-Ti/16 at 112 px): if it does
not suffice for all training images of the experiment, each class has fewer.

`joint-tuned` is selected by the accuracy of its head. The accuracy of `joint-gaussian` with the
same options is recorded next to it; both come from one training. Trials are kept in
results/search-EXPERIMENT.json.gz, and those that it contains are not repeated. Copy the selected
options, printed at the end, to `options` of the experiment's file and the table to
docs/baselines.md; tests compare them with the record.
"""

from __future__ import annotations

from dataclasses import replace

from choose_strengths import new_search, parser_of_search, print_record, read_experiment

from remembering.errors import RememberingError
from remembering.experiments.search import FIRST_SEED, HELD_OUT
from remembering.experiments.spec import Experiment, with_seed
from remembering.experiments.stream import make_stream

AXES: dict[str, tuple[float, ...]] = {
    "augment": (2, 1, 0),
    "lr": (1e-3, 3e-3, 3e-4),
    "rank": (8, 16),
    "epochs": (6, 12),
}


def main() -> None:
    parser = parser_of_search(__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=100_000, help="image passes of the search")
    arguments = parser.parse_args()
    experiment = within_budget(read_experiment(arguments), arguments.budget)
    search = new_search(arguments, experiment)
    search.coordinate_search("joint-tuned", AXES, [FIRST_SEED], also=["joint-gaussian"])
    print_record(search)


def within_budget(experiment: Experiment, budget: int) -> Experiment:
    """Return the experiment with as many images per class as the budget allows."""
    first, rest = AXES["epochs"][0], AXES["epochs"][1:]
    changes = sum(len(values) - 1 for name, values in AXES.items() if name != "epochs")
    passes = int(first * (1 + changes) + sum(rest))
    tasks = make_stream(with_seed(experiment, FIRST_SEED), HELD_OUT).tasks
    classes = sum(len(data.train.classes) for data in tasks)
    per_class = budget // passes // classes
    if per_class < 2:
        raise RememberingError(
            f"a budget of {budget} image passes allows {per_class} images per class; give at "
            f"least {2 * passes * classes}"
        )
    images = sum(len(data.train) for data in tasks)
    if per_class * classes >= images:
        return experiment
    return replace(experiment, stream=replace(experiment.stream, per_class=per_class))


if __name__ == "__main__":
    main()
