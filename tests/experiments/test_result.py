"""The written contract of results.json, and that the run-time check keeps to it."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest

from remembering.errors import RememberingError
from remembering.report.validation import REQUIRED, check_results

from .example import make_results

SCHEMA = json.loads(
    resources.files("remembering.report").joinpath("results.schema.json").read_text("utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def accepted(results: Any) -> tuple[bool, bool]:
    """What the schema says, and what the run-time check says."""
    try:
        check_results(results, "results.json")
    except RememberingError:
        return VALIDATOR.is_valid(results), False
    return VALIDATOR.is_valid(results), True


def test_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("tasks", [1, 5, 50])
def test_example_is_accepted(tasks: int) -> None:
    assert accepted(make_results(task_count=tasks)) == (True, True)


def test_nulls_are_accepted_where_something_was_not_measured() -> None:
    results = make_results(
        ablated_accuracy=None, ablated_after=None, forgetting=None, published=None, baselines={}
    )
    assert accepted(results) == (True, True)


def test_both_checks_require_the_same_keys() -> None:
    assert set(SCHEMA["required"]) == set(REQUIRED)
    optional = {"combination", "compared", "novelty", "router_alone_accuracy"}
    assert set(SCHEMA["properties"]) - set(REQUIRED) == optional


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_key_is_refused(key: str) -> None:
    results = make_results()
    del results[key]
    assert accepted(results) == (False, False)


def test_unknown_key_is_refused_by_the_schema() -> None:
    assert not VALIDATOR.is_valid(make_results(acuracy={}))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"seed": -1},
        {"seed": "0"},
        {"small": "yes"},
        {"units": []},
        {"units": ["sample", "batch"]},
        {"units": ["sample", "sample"]},
        {"accuracy": {"sample": 61.0, "group_32": 0, "group_128": 0, "task": 0}},
        {"oracle_task_accuracy": None},
        {"router": {}},
        {"tasks": []},
        {"tasks": [{"name": "a"}] * 5},
        {"published": {"accuracy": 99.3}},
        {"footprint": {"adapters": 1}},
        {"baselines": {"joint": {"accuracy": 0.5}}},
        {"environment": {"torch": None}},
    ],
    ids=str,
)
def test_wrong_value_is_refused(change: dict[str, Any]) -> None:
    assert accepted(make_results(**change)) == (False, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"oracle_after": [1.0]}, "5 tasks but 1 values in 'oracle_after'"),
        ({"accuracy": {"sample": 0.5}}, "unit 'group_32' but has no 'accuracy'"),
        ({"reconstruction_errors": [[1.0], [1.0, 2.0]]}, "unequal length"),
        ({"version": 7}, "version 7, this release reads version 1"),
    ],
)
def test_contradictions_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RememberingError, match=message):
        check_results(make_results(**change), "results.json")


def test_not_an_object() -> None:
    with pytest.raises(RememberingError, match="not a JSON object"):
        check_results([], "results.json")
