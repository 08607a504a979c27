"""The table of docs/fidelity.md is that of the committed record."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_routing_table_is_that_of_the_record() -> None:
    path = ROOT / "scripts/measure_paper_routing.py"
    spec = importlib.util.spec_from_file_location("measure_paper_routing", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    table = script.table(script.read_record(ROOT / "results/paper-routing.json.gz"))
    assert table in (ROOT / "docs/fidelity.md").read_text(), (
        "replace the table of docs/fidelity.md by the output of "
        "python scripts/measure_paper_routing.py --table"
    )
