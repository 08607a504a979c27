"""Time and accuracy of the commands on a folder of photos, as a new user would run them.

    python scripts/measure_photos.py --data FOLDER_OF_CIFAR100 --backbone FOLDER

Writes four tasks of five classes of CIFAR-100 as JPEG files of 160 px, 25 photos per class to learn
and 20 test photos per class to evaluate, and runs `remember learn` and `remember evaluate`, with
and without --fast. Accuracy is of single images (unit `sample`).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image

from remembering.data.sources import load
from remembering.data.sources.base import LabelledImages

TASKS = {
    "home": ["chair", "clock", "keyboard", "lamp", "telephone"],
    "plants": ["orchid", "poppy", "rose", "sunflower", "tulip"],
    "sea": ["dolphin", "otter", "seal", "shark", "whale"],
    "vehicles": ["bus", "motorcycle", "rocket", "tractor", "train"],
}
LEARNED, MEASURED, SIZE = 25, 20, 160


def main() -> None:
    """Print one row per variant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of CIFAR-100")
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--image-size", default="112")
    options = parser.parse_args()
    source = load("cifar100", options.data)
    print("| | seconds | CPU seconds | accuracy | false alarms at 5 % |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for part, images, count in (
            ("photos", source.train, LEARNED),
            ("test-photos", source.test, MEASURED),
        ):
            _write(images, [str(label) for label in source.classes], count, folder / part)
        backbone = ["--backbone", options.backbone, "--image-size", options.image_size]
        for name, more in (("default", []), ("--fast", ["--fast"])):
            clock, before = time.perf_counter(), _cpu_seconds()
            model = folder / name
            _run("learn", model, folder / "photos", *backbone, *more)
            found = json.loads(_run("evaluate", model, folder / "test-photos", "--json"))
            seconds, cpu = time.perf_counter() - clock, _cpu_seconds() - before
            rates = f"{100 * found['accuracy']:.1f} % | {100 * found['false_alarms']:.1f} %"
            print(f"| {name} | {seconds:.0f} | {cpu:.0f} | {rates} |", flush=True)


def _write(images: LabelledImages, classes: list[str], count: int, folder: Path) -> None:
    for task, labels in TASKS.items():
        for label in labels:
            rows = (images.labels == classes.index(label)).nonzero().flatten()[:count]
            (folder / task / label).mkdir(parents=True)
            for i, row in enumerate(rows.tolist()):
                pixels = images.images[torch.tensor([row])][0].permute(1, 2, 0).numpy()
                photo = Image.fromarray(pixels).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
                photo.save(folder / task / label / f"{i:02}.jpg", quality=92)


def _run(*arguments: object) -> str:
    command = [sys.executable, "-m", "remembering", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
