"""The table of docs/fidelity.md is that of the committed record."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_routing_table_is_that_of_the_record() -> None:
    path = ROOT / "scripts/measure_paper_routing.py"
    script = runpy.run_path(str(path), run_name="measure_paper_routing")
    table = script["table"](script["read_record"](ROOT / "results/paper-routing.json.gz"))
    assert table in (ROOT / "docs/fidelity.md").read_text(), (
        "replace the table of docs/fidelity.md by the output of "
        "python scripts/measure_paper_routing.py --table"
    )
