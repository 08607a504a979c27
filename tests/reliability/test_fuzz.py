"""A few seconds of coverage-guided fuzzing for each reader of untrusted files; see `make fuzz`."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz import NAMES, fuzz
from support import sized

pytestmark = pytest.mark.reliability
SECONDS = sized(2, 20, 120)
RUNS = sized(500, 5000, -1)
"""The same inputs each time; a slow machine tries fewer. New ones are tried by `make fuzz`."""


@pytest.mark.parametrize("name", NAMES)
def test_only_errors_of_this_library_escape(name: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris has no wheel for this platform")
    outcome = fuzz(name, tmp_path, SECONDS, runs=RUNS)
    assert outcome.status == 0, outcome.output[-5000:]
    assert outcome.inputs > 10, "the corpus and some mutations of it"
