"""Run one target under atheris: `python -m fuzz.child TARGET FOLDER [options of libFuzzer]`."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path


def main() -> None:
    import atheris

    name, work, *options = sys.argv[1:]
    os.chdir(work)
    with atheris.instrument_imports(include=["remembering", "PIL", "tomllib"]):
        from fuzz import mutations, targets

        target = targets.TARGETS[name](Path(work))
    corpus = Path(work) / "corpus"
    corpus.mkdir()
    for i, seed in enumerate(target.seeds):
        (corpus / f"{i:02d}").write_bytes(seed)

    def run(data: bytes) -> None:
        try:
            target.run(data)
        except targets.RememberingError:
            return

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        changed = mutations.mutated(data, rng) if rng.random() < 0.7 else None
        return atheris.Mutate(data, size) if changed is None else changed[:size]

    atheris.Setup(
        [sys.argv[0], *options, str(corpus)],
        run,
        custom_mutator=mutate if target.structured else None,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
