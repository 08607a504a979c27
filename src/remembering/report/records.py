"""Records: results that are committed, as compressed JSON.

    FOLDER/EXPERIMENT[-small][-VARIANT]/METHOD-seed-N.json.gz           of `remember run`
    FOLDER/compare-EXPERIMENT[-small]/METHOD-seed-N.json.gz             of `remember compare`

Seeds and methods are added one by one; those that are there need not be run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from remembering.errors import RememberingError
from remembering.experiments.result import RunResult, read_result, write_result
from remembering.report.groups import load_results, no_results, result_differences, slug


def record(paths: Sequence[str | Path], folder: Path) -> list[Path]:
    """Copy all results in some folders and below them to records.

    A result that was run again with the same settings replaces its record.

    Args:
        paths: Folders of `remember run` and `remember compare`, or folders that contain them.
        folder: The folder of all records.

    Returns:
        The records that are new or have changed.

    Raises:
        RememberingError: If there are no results, two of them have the same record, or a record
            with other settings exists. Then nothing is written.
    """
    results: dict[Path, RunResult] = {}
    for result in load_results(paths):
        path = record_path(result, folder)
        if path in results:
            raise RememberingError(
                f"two results would be recorded as {path}; leave one of the two folders out"
            )
        before = read_result(path) if path.exists() else result
        differing = result_differences(before, result)
        if differing:
            raise RememberingError(
                f"{path} has other settings ({', '.join(differing)}); remove it if the new result "
                "replaces it"
            )
        results[path] = result
    if not results:
        raise no_results(paths)
    changed = [p for p, found in results.items() if not p.exists() or read_result(p) != found]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_result(path, results[path])
    return changed


def record_path(result: RunResult, folder: Path) -> Path:
    """Return the path of the record of a result."""
    config = result.config
    kind = "compare" if result.compared else ""
    place = slug(kind, config.experiment, "small" if config.small else "", config.variant or "")
    return folder / place / f"{slug(config.method)}-seed-{result.seed}.json.gz"
