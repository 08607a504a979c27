"""What feature vectors that are kept add to finished runs: single test images, the same adapters.

    python scripts/measure_replay.py runs/cifar100-10-small/seed-0 ... --keep 0 128 512

Of each run the router alone is fitted anew, with and without kept vectors; adapters, heads and feature_adapter
stay. The strength of the logit_correction was chosen on training images (scripts/study_routing.py).
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
from remembering.inference.encoding import encode_task
from remembering.model import RememberingTransformer
from remembering.routing import make_router
from remembering.runtime.seeding import generator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--keep", nargs="+", type=int, default=[0, 128, 512])
    arguments = parser.parse_args()
    found: dict[int, list[tuple[float, float]]] = {keep: [] for keep in arguments.keep}
    print("| run | vectors kept per task | right (%) | right, router alone (%) |")
    print("| --- | ---: | ---: | ---: |")
    for run in arguments.runs:
        for keep, right, alone in _measure(run, arguments.keep):
            found[keep].append((right, alone))
            print(f"| {run.name} | {keep} | {right:.1f} | {alone:.1f} |", flush=True)
    for keep, values in found.items():
        both = " | ".join(_spread(column) for column in zip(*values, strict=True))
        print(f"| mean | {keep} | {both} |")


def _spread(values: tuple[float, ...]) -> str:
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread}"


def _measure(run: Path, keeps: list[int]) -> Iterator[tuple[int, float, float]]:
    """For each number of vectors: percentages of single test images, mean over tasks."""
    model = RememberingTransformer.load(run / MODEL)
    stream = make_stream(read_config(run).settings)
    first, settings = model.settings.first_layer, model.settings

    def seen(images):  # type: ignore[no-untyped-def]
        return encode_task(
            model.backbone, model.router, model.feature_adapter, first, images
        ).features

    learned = [(seen(data.train.images), data.train.targets) for data in stream.tasks]
    asked = [seen(data.test.images) for data in stream.tasks]
    columns = [label for record in model.tasks for label in record.classes]
    for keep in keeps:
        router = make_router(replace(settings.router, replay=keep))
        for number, (features, targets) in enumerate(learned):
            rng = generator(settings.seed, "router")
            router.add(number, router.fit(features, targets, rng))
        model.router = router
        right, alone = [], []
        for features, data in zip(asked, stream.tasks, strict=True):
            errors, logits = router.scores_and_logits(features)
            adapters = model.gate(errors.argmin(1))
            answers = model.answer(data.test.images, adapters)
            answers = model.combine(answers, logits, adapters, hard_routing=False)
            said = [model.classes[i] for i in answers.argmax(1).tolist()]
            right.append(accuracy(said, data.test.labels))
            own = router.class_logits(features).argmax(1).tolist()
            alone.append(accuracy([columns[i] for i in own], data.test.labels))
        yield keep, 100 * mean(right), 100 * mean(alone)


if __name__ == "__main__":
    main()
