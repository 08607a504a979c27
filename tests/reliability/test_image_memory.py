"""Images that are small as files and large as pixels do not exhaust memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

MEGABYTE = 1024**2
COUNT, SIDE = 12, 3000
PREDICT = """
import resource, sys
from pathlib import Path
import torch
from remembering.backbones.backbone import Backbone
from remembering.data import images
from remembering.data.conversion import as_images
from remembering.inference.encoding import flip_horizontally

images.CACHE_BYTES = 32 * 1024**2
torch.set_num_threads(1)
backbone = Backbone.load("bundled")
backbone.embed(torch.zeros(12, 3, 28, 28, dtype=torch.uint8))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
batch = as_images([Path(path) for path in sys.argv[1:]])[torch.arange(len(sys.argv) - 1)]
assert len(backbone.embed(batch)) == len(backbone.embed(flip_horizontally(batch))) == len(batch)
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs")
def test_a_batch_of_large_images_takes_the_memory_of_a_few(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(COUNT)]
    for i, path in enumerate(paths):
        Image.new("RGB", (SIDE, SIDE), (20 * i, 0, 0)).save(path)
    one = 3 * SIDE**2
    assert sum(path.stat().st_size for path in paths) < MEGABYTE
    done = subprocess.run(
        [sys.executable, "-c", PREDICT, *map(str, paths)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(128 * 1024)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    grown = int(done.stdout)
    assert grown < 8 * one, f"{grown / MEGABYTE:.0f} MiB for images of {one / MEGABYTE:.0f}"
