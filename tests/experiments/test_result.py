"""The format of results: the strict reader and the generated JSON schema agree."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from report.example import baselines, make_result, published_model, unit_result

from remembering import schema
from remembering.errors import RememberingError
from remembering.experiments.result import VERSION, RunResult, UnitResult, read_result, write_result
from remembering.runtime import reading

SCHEMA = schema.json_schema(RunResult)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
REQUIRED = SCHEMA["$defs"]["RunResult"]["required"]


def document(*path: str, value: Any = None) -> dict[str, Any]:
    """Return a valid document, with the value at some place replaced, or removed if None."""
    data: dict[str, Any] = json.loads(json.dumps(schema.write(make_result())))
    place = data
    for key in path[:-1]:
        place = place[key]
    if path:
        place[path[-1]] = value
        if value is None:
            del place[path[-1]]
    return data


def accepted(data: Any) -> tuple[bool, bool]:
    """Return whether the schema and the reader accept a document."""
    try:
        schema.read(RunResult, data, "results.json")
    except RememberingError:
        return VALIDATOR.is_valid(data), False
    return VALIDATOR.is_valid(data), True


def test_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "result",
    [
        make_result(1),
        make_result(50),
        published_model(),
        *baselines(),
    ],
    ids=["one task", "fifty tasks", "published configuration", "joint", "finetune"],
)
def test_results_are_read_as_they_were_written(result: RunResult, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_result(path, result)
    assert read_result(path) == result
    VALIDATOR.validate(json.loads(path.read_text()))


@pytest.mark.parametrize("key", [key for key in REQUIRED if key != "version"])
def test_missing_key_is_named(key: str) -> None:
    data = document(key)
    assert accepted(data) == (False, False)
    with pytest.raises(RememberingError, match=f"results.json: '{key}' is missing"):
        schema.read(RunResult, data, "results.json")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("acuracy",), {}),
        (("config", "settings", "learning", "seed"), "0"),
        (("config", "small"), "yes"),
        (("config", "settings", "learning", "rnak"), 1),
        (("units", "sample", "accuracy"), 61.0),
        (("units", "sample", "accuracy"), -0.1),
        (("units", "sample", "accuracy"), "much"),
        (("units", "sample", "matrix"), [["much"]]),
        (("units", "sample", "answers"), ["much"]),
        (("routing", "router", "settings", "kind"), "magic"),
        (("routing", "oracle_after"), [2.0]),
        (("routing", "novelty"), 3),
        (("tasks",), [{"name": "a"}] * 5),
        (("footprint",), {"adapters": 1}),
        (("footprint", "bytes"), -1),
        (("environment", "torch"), 2.5),
        (("method",), "ewc"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else str(value),
)
def test_wrong_value_is_rejected(path: tuple[str, ...], value: Any) -> None:
    assert accepted(document(*path, value=value)) == (False, False)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("routing", "oracle_after"), [1.0], r"routing\.oracle_after has 1 values for 5 tasks"),
        (("units", "sample", "matrix"), [[1.0]] * 5, r"units\.sample\.matrix has 1 values for 5"),
        (("units", "sample", "answers"), [], r"units\.sample\.answers has 0 values for 5 tasks"),
        (("routing", "router", "scores"), [[1.0, 2.0]] * 5, r"router\.scores has 2 values for 5"),
        (("units", "batch"), document()["units"]["sample"], "routing unit 'batch' is unknown"),
        (("units",), {}, "at least one task and one routing unit"),
    ],
)
def test_contradictions_are_named(path: tuple[str, ...], value: Any, message: str) -> None:
    with pytest.raises(RememberingError, match=message):
        schema.read(RunResult, document(*path, value=value), "results.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("\x00", "not valid JSON"),
        ("[]", f"version None, this release reads version {VERSION}"),
        ('{"version": 1}', f"version 1, this release reads version {VERSION}"),
        (f'{{"version": {VERSION}}}', "'config' is missing"),
        (json.dumps(document("seconds", value=float("nan"))), "must be a finite number"),
    ],
)
def test_files_that_cannot_be_read_are_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(RememberingError, match=f"{path}.*{message}"):
        read_result(path)


def test_equal_results_are_equal_compressed_files(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.json.gz" for i in range(2)]
    for path in paths:
        write_result(path, make_result())
        assert read_result(path) == make_result()
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes()[4:8] == bytes(4), "no time"


@pytest.mark.parametrize(
    "content",
    [b"{}", gzip.compress(b"{}")[:-1], gzip.compress(b"{}") * 2, gzip.compress(b"[" * 100_000)],
    ids=["not compressed", "cut", "twice", "nested"],
)
def test_damaged_records_are_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a-seed-0.json.gz"
    path.write_bytes(content)
    with pytest.raises(RememberingError, match=f"{path} is not valid JSON"):
        read_result(path)


def test_a_record_is_not_decompressed_beyond_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_TEXT_BYTES", 1000)
    path = tmp_path / "a-seed-0.json.gz"
    path.write_bytes(gzip.compress(b'"' + b"a" * 1000 + b'"'))
    with pytest.raises(RememberingError, match="at most 1,000 bytes"):
        read_result(path)


def test_missing_and_binary_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match="does not exist"):
        read_result(tmp_path / "nowhere.json")
    (tmp_path / "results.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(RememberingError, match="not valid JSON"):
        read_result(tmp_path / "results.json")


def test_summary_of_a_matrix_by_hand() -> None:
    result = UnitResult.of([[0.9, None], [0.6, 0.8]], [])
    assert (result.accuracy, result.average) == (pytest.approx(0.7), pytest.approx(0.8))
    assert result.accuracy_after == (0.9, pytest.approx(0.7))
    assert result.forgetting == pytest.approx(0.3)


def test_a_method_that_is_evaluated_once_has_no_average() -> None:
    result = unit_result([None, None, 0.5])
    assert (result.accuracy, result.average, result.forgetting) == (0.5, None, None)
