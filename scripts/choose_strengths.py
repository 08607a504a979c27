"""How strongly each rival holds on to the past, chosen on training images alone.

    python scripts/choose_strengths.py digits-5
    python scripts/choose_strengths.py cifar10-5 --small --backbone FOLDER --methods ewc,si
    python scripts/choose_strengths.py permuted-mnist-10 --small --methods si --values 0.01,0.1,1

The experiment's own settings, in class orders that no result uses (seeds 10 and 11): some training
images of each class are learned, 30 others are asked about after the last task. Test images are
not opened. Prints a Markdown table; the best of each method is bold. Figures are in docs/baselines.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from remembering.backbones.backbone import Backbone
from remembering.baselines import BASELINES, Baseline
from remembering.baselines.features import FeatureCache
from remembering.baselines.lwf import LwF
from remembering.data.sources import load
from remembering.data.sources.base import Source
from remembering.data.streams.permute import permute
from remembering.data.streams.split import split
from remembering.data.streams.stream import Stream
from remembering.data.task import Task
from remembering.evaluation.metrics import accuracy, mean
from remembering.experiments.methods import METHODS as KNOWN
from remembering.experiments.spec import Experiment, find
from remembering.learning.training import TrainingSet
from remembering.runtime.seeding import permutation

SEEDS, ASKED = (10, 11), 30


class LwFOverAll(LwF):
    """LwF whose cross entropy is over all classes so far, not over the new ones alone."""

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        super().begin(task, training_set)
        self.task_classes = torch.arange(len(self.classes))


METHODS: dict[str, type[Baseline]] = {**BASELINES, "lwf, all classes": LwFOverAll}
GRIDS: dict[str, list[dict[str, float]]] = {
    "finetune": [{}],
    "ewc": [{"strength": 10.0**power} for power in range(4, 12)],
    "online_ewc": [{"strength": 10.0**power} for power in range(4, 12)],
    "si": [{"strength": 10.0**power} for power in range(-2, 5)],
    "lwf": [{"strength": value} for value in (1.0, 3.0, 10.0)],
    "lwf, all classes": [{"strength": value} for value in (1.0, 3.0, 10.0)],
    "bir_si": [{"strength": 10.0**power} for power in range(-1, 3)],
    "owm": [{"alpha": 10.0**power} for power in range(-2, 2)],
    "hypernet": [{"strength": 10.0**power} for power in range(-5, -1)],
    "mnemonics": [{"lr": value} for value in (0.0001, 0.0003, 0.001, 0.003)],
    "supsup": [{"g": 0.0}, {"g": 1.0}],
    "der": [{"alpha": a, "beta": b} for a, b in ((0.1, 0.5), (0.5, 0.5), (0.5, 1.0))],
    "clom": [{"contrast": value} for value in (0.3, 1.0, 3.0)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--backbone")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--methods", help="names by commas; all by default")
    parser.add_argument("--values", help="numbers by commas, in place of those of one option")
    parser.add_argument("--per-class", type=int, help="images to learn, if not the experiment's")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    arguments = parser.parse_args()
    experiment = next(iter(find(arguments.experiment).variants(arguments.small).values()))
    if arguments.per_class:
        stream = replace(experiment.stream, per_class=arguments.per_class)
        experiment = replace(experiment, stream=stream)
    backbone = Backbone.load(arguments.backbone or experiment.backbone, experiment.image_size)
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    streams = {seed: _stream(experiment, arguments.data, seed) for seed in seeds}
    wanted = arguments.methods.split(",") if arguments.methods else list(GRIDS)
    print(f"| method | option | {' | '.join(f'seed {seed} (%)' for seed in seeds)} | mean (%) |")
    print("| --- | --- |" + " ---: |" * (len(seeds) + 1), flush=True)
    cache = FeatureCache()
    for name, grid in GRIDS.items():
        if name.split(",")[0] in wanted:
            if arguments.values and grid != [{}]:
                if len(grid[0]) > 1:
                    parser.error(f"--values is for methods with one option in the grid, not {name}")
                (option,) = grid[0]
                grid = [{option: float(value)} for value in arguments.values.split(",")]
            _try(name, grid, backbone, experiment, streams, cache)


def _stream(experiment: Experiment, data: Path | None, seed: int) -> Stream:
    """The experiment's tasks, with training images that are not learned in place of the test's."""
    wanted = experiment.stream
    source = load(wanted.source, data)
    learned, asked = [], []
    for label in range(len(source.classes)):
        members = (source.train.labels == label).nonzero().flatten()
        members = members[permutation(len(members), seed, "limit", "train", label)]
        asked.append(members[-ASKED:])
        learned.append(members[:-ASKED][: wanted.per_class])
    train, held_out = (
        source.train.take(torch.cat(part).sort().values) for part in (learned, asked)
    )
    deal = permute if wanted.kind == "permute" else split
    return deal(Source(source.name, train, held_out, source.classes), wanted.tasks, seed)


def _try(
    name: str,
    grid: Sequence[Mapping[str, float]],
    backbone: Backbone,
    experiment: Experiment,
    streams: Mapping[int, Stream],
    cache: FeatureCache,
) -> None:
    """One row for each point of a grid, once all are known."""
    reached = []
    for options in grid:
        scores = []
        for seed, stream in streams.items():
            epochs = experiment.epochs(len(stream.tasks))
            settings = replace(experiment.learning, epochs=epochs, seed=seed)
            values = KNOWN[name.split(",")[0]].options(options, stream)
            learner = METHODS[name](backbone, settings, cache, **values)
            for data in stream.tasks:
                learner.learn(data.train)
            asked = [data.test for data in stream.tasks]
            scores.append(
                mean([accuracy(learner.predict(t.images).labels, t.labels) for t in asked])
            )
        reached.append(scores)
    best = max(mean(scores) for scores in reached)
    for options, scores in zip(grid, reached, strict=True):
        told = ", ".join(f"{key} = {value:g}" for key, value in options.items())
        each = " | ".join(f"{100 * score:.1f}" for score in scores)
        average = f"{100 * mean(scores):.1f}"
        mark = "**" if len(grid) > 1 and mean(scores) == best else ""
        print(f"| {name} | {told} | {each} | {mark}{average}{mark} |", flush=True)


if __name__ == "__main__":
    main()
