"""Fuzz some targets, or all: `PYTHONPATH=tests python -m fuzz --seconds 60 [TARGET ...]`."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from fuzz import NAMES, fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz readers of untrusted files.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    options = parser.parse_args()
    failed = 0
    for name in options.targets or NAMES:
        if name not in NAMES:
            parser.error(f"there is no target '{name}'; choose from {', '.join(NAMES)}")
        folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
        outcome = fuzz(name, folder, options.seconds, options.seed)
        print(f"{name:10}{outcome.inputs:>9,} inputs", flush=True)
        if outcome.status == 0:
            shutil.rmtree(folder)
        else:
            failed += 1
            print(f"{outcome.output}\nfailed with status {outcome.status}; see {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
