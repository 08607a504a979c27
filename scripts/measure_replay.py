"""Measure what the logit correction adds to finished runs, on single test images.

    python scripts/measure_replay.py runs/cifar100-10-small/seed-0 ... --keep 0 128 512

Only the router of each run is fitted again, with and without kept feature vectors; adapters, heads
and the feature adapter are unchanged. The penalty of the logit correction was selected on training
images (scripts/study_routing.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from remembering.evaluation.metrics import accuracy
from remembering.experiments.folder import read_config
from remembering.experiments.spec import MODEL
from remembering.experiments.stream import make_stream
from remembering.inference.predict import router_features
from remembering.model import RememberingTransformer
from remembering.routing import make_router
from remembering.runtime.seeding import generator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--keep", nargs="+", type=int, default=[0, 128, 512])
    arguments = parser.parse_args()
    results: dict[int, list[tuple[float, float]]] = {keep: [] for keep in arguments.keep}
    print("| run | vectors kept per task | accuracy (%) | accuracy, router alone (%) |")
    print("| --- | ---: | ---: | ---: |")
    for run in arguments.runs:
        for keep, both, router_alone in _measure(run, arguments.keep):
            results[keep].append((both, router_alone))
            print(f"| {run.name} | {keep} | {both:.1f} | {router_alone:.1f} |", flush=True)
    for keep, values in results.items():
        cells = " | ".join(_spread(column) for column in zip(*values, strict=True))
        print(f"| mean | {keep} | {cells} |")


def _spread(values: tuple[float, ...]) -> str:
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread}"


def _measure(run: Path, replays: list[int]) -> Iterator[tuple[int, float, float]]:
    """For each number of vectors, compute the accuracy in percent as a mean over tasks."""
    model = RememberingTransformer.load(run / MODEL)
    stream = make_stream(read_config(run).settings)
    state, backbone = model.state, model.backbone
    trained = [router_features(state, backbone, data.train.images) for data in stream.tasks]
    tested = [router_features(state, backbone, data.test.images) for data in stream.tasks]
    columns = [label for record in state.tasks for label in record.classes]
    for replay in replays:
        settings = replace(state.settings, router=replace(state.settings.router, replay=replay))
        router = make_router(settings.router)
        for record, features, data in zip(state.tasks, trained, stream.tasks, strict=True):
            rng = generator(settings.seed, "router")
            expert = router.fit(features, data.train.targets, rng)
            router = router.with_expert(record.number, expert)
        refitted = model.with_state(replace(state, settings=settings, router=router))
        accuracies, router_alone = [], []
        for features, data in zip(tested, stream.tasks, strict=True):
            test = data.test
            accuracies.append(accuracy(refitted.predict(test.images).labels, test.labels))
            best = router.class_logits(features).argmax(1).tolist()
            router_alone.append(accuracy([columns[i] for i in best], test.labels))
        yield replay, 100 * mean(accuracies), 100 * mean(router_alone)


if __name__ == "__main__":
    main()
