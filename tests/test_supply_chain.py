"""Everything that `make` installs is pinned, and an audit that did not happen is not a success."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[1]
PINNED = {
    re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower()
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(texts: list[str], extras: set[str], found: set[str]) -> set[str]:
    """Return the names of all packages that some requirements install, here."""
    for text in texts:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            continue
        name = normalised(requirement.name)
        key = f"{name}[{','.join(sorted(requirement.extras))}]"
        if key in found:
            continue
        found.add(key)
        try:
            required(requires(name) or [], requirement.extras, found)
        except PackageNotFoundError:
            continue  # the build backend is installed for the build only
    return {key.partition("[")[0] for key in found}


def test_every_package_that_make_installs_is_pinned() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    texts = [*project["project"]["dependencies"], *(text for extra in extras for text in extra)]
    names = required([*texts, *project["build-system"]["requires"]], set(), set())
    assert len(names) > 100
    # torch asks for CUDA packages unless its CPU build is installed.
    missing = {n for n in names - PINNED - {"remembering"} if not n.startswith(("nvidia", "cuda"))}
    assert missing - {"triton"} == set()


@pytest.mark.parametrize(
    ("packages", "status"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0),
        ([{"name": "a", "skip_reason": "not found"}], 2),
        ([{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}], 1),
    ],
)
def test_an_audit_succeeds_only_if_it_is_complete(
    packages: list[dict[str, object]], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    audit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audit)
    assert audit.summarise(packages) == status
    captured = capsys.readouterr()
    assert ("NOT audited" in captured.err) == (status == 2)
    assert ("a 1: X-1, fixed in 2" in captured.out) == (status == 1)
