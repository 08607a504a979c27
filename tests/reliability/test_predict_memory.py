"""`remember predict` takes the same memory for a few files as for many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from support import learned

from remembering.backbones.backbone import Backbone

pytestmark = pytest.mark.reliability
MEGABYTE = 1024**2
FEW, MANY = 1024, 20_000 if os.environ.get("REMEMBERING_LONG") else 6000
PER_FILE = 500
"""Bytes of a file's name, which is kept."""
# Peak memory of the process, measured before Python itself ends.
PREDICT = """
import resource, sys
from remembering.cli import main
assert main(["predict", *sys.argv[1:], "--json", "--top-k", "40"]) == 0
print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs")
def test_memory_does_not_grow_with_the_number_of_files(backbone: Backbone, tmp_path: Path) -> None:
    model, image = tmp_path / "model", tmp_path / "image.png"
    learned(backbone, 20).save(model)
    Image.new("RGB", (16, 16), (200, 30, 90)).save(image)

    def peak(count: int) -> int:
        folder = tmp_path / str(count)
        folder.mkdir()
        for i in range(count):
            (folder / f"{i}.png").hardlink_to(image)
        with (tmp_path / f"{count}.json").open("wb") as answers:
            result = subprocess.run(
                [sys.executable, "-c", PREDICT, str(model), str(folder)],
                stdout=answers,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"},
            )
        assert result.returncode == 0, result.stderr
        return int(result.stderr.split()[-1])

    few, many = peak(FEW), peak(MANY)
    print(f"{few / MEGABYTE:.1f} MiB for {FEW} files, {many / MEGABYTE:.1f} MiB for {MANY}")
    assert many - few < 2 * MEGABYTE + PER_FILE * (MANY - FEW)
