"""Coverage-guided fuzzing of everything that reads untrusted files: `make fuzz`.

`targets` has one target per reader, `child` runs one of them under atheris, and `fuzz` watches it
from outside: no exception but a `RememberingError` may escape, and no file outside the working
folder may change.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 30
"""For a single input."""
MEMORY_MB = 3072
NAMES = ("manifest", "artifact", "image", "toml", "idx", "parquet", "table", "dataset")


@dataclass(frozen=True)
class Outcome:
    """What a fuzzing process did: its exit status, what it printed, and the inputs it tried."""

    status: int
    output: str
    inputs: int


def fuzz(name: str, folder: Path, seconds: int, seed: int = 1, runs: int = -1) -> Outcome:
    """Fuzz one target in a process of its own.

    Args:
        name: The target.
        folder: An empty folder. An input that fails is kept there as `crash-*`.
        seconds: How long to try.
        seed: Of the random numbers, which determine the inputs.
        runs: Upper bound on the number of inputs. -1: none.

    Raises:
        AssertionError: If a file outside the working folder changed.
    """
    work, canary = folder / "work", folder / "canary"
    work.mkdir()
    plant(canary)
    before = described(canary)
    environment = {
        **os.environ,
        "HOME": str(canary / "home"),
        "REMEMBERING_CACHE": str(work / "cache"),
        "HF_HOME": str(work / "hub"),
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(work),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.getenv("PYTHONPATH")])]),
    }
    options = [
        f"-max_total_time={seconds}",
        f"-runs={runs}",
        f"-seed={seed}",
        f"-timeout={TIMEOUT_SECONDS}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={folder}/",
        "-max_len=65536",
        "-print_final_stats=1",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.child", name, str(work), *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert described(canary) == before, f"{name}: files outside the working folder have changed"
    tried = re.findall(r"stat::number_of_executed_units: (\d+)", done.stdout)
    return Outcome(done.returncode, done.stdout, int(tried[-1]) if tried else 0)


def plant(canary: Path) -> None:
    """Create a tree of files that nothing may touch."""
    for name in ("home/.bashrc", "home/documents/letter.txt", "0000-0123456789ab.safetensors"):
        path = canary / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"precious: {name}")


def described(tree: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time of change and content of everything in a tree."""
    return {
        str(path): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [tree, *sorted(tree.rglob("*"))]
    }
