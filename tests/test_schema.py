"""Dataclasses are read strictly, and what is written is read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remembering import schema
from remembering.config import RouterSettings, Settings
from remembering.errors import RememberingError
from remembering.schema import Count, Rate

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(
    rank=st.integers(1, 64),
    capacity=st.none() | st.integers(1, 9),
    layers=st.sets(st.integers(0, 12), min_size=1).map(lambda s: tuple(sorted(s))),
    lr=st.floats(1e-6, 1),
)
def test_what_is_written_is_read_back(
    rank: int, capacity: int | None, layers: tuple[int, ...], lr: float
) -> None:
    settings = Settings(rank=rank, capacity=capacity, lr=lr, router=RouterSettings(layers=layers))
    assert schema.read(Settings, schema.write(settings), "test") == settings


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"rnak": 1}, "unknown setting 'rnak'; did you mean 'rank'"),
        ({"router": {"kid": 1}}, r"unknown setting 'router.kid'; did you mean 'kind'"),
        ({"rank": "1"}, "rank = '1' must be of type int"),
        ({"rank": True}, "rank = 'True' must be of type int"),
        ({"lr": float("inf")}, "must be a finite number"),
        ({"lr": 10**400}, "must be a finite number"),
        ({"lr": int("f" * 5000, 16)}, "lr = a number of too many digits must be a finite number"),
        ({"rank": int("f" * 5000, 16)}, "rank = a number of too many digits must be below 1e.300"),
        ({"head": [int("f" * 5000, 16)]}, "head = a number of too many digits must be one of"),
        ({"lr": 1e38}, "must be above 0 and below 1e6"),
        ({"weight_decay": float("nan")}, "must be a finite number"),
        ({"head": "round"}, "one of 'linear', 'frozen'"),
        ({"router": 3}, "router = '3' must be a table"),
        ({"router": {"layers": [0, "1"]}}, r"router\.layers = '1'"),
        ({"capacity": 0}, "x.toml: capacity = 0 must be at least 1"),
        ([], "must be a table of settings"),
    ],
)
def test_wrong_settings_are_named(data: Any, message: str) -> None:
    with pytest.raises(RememberingError, match=message):
        schema.read(Settings, data, "x.toml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 2.0}, "settings: capacity = '2.0' must be of type int"),
        ({"augment": "rotate"}, "augment = 'rotate' must be one of"),
        ({"head": "Linear"}, "head = 'Linear' must be one of"),
        ({"lr": "fast"}, "lr = 'fast' must be"),
        ({"router": {"kind": "subspace", "latent": "2"}}, "router.latent = '2' must be of type"),
        (
            {"classifier": {"kind": "head"}, "adapters": "task", "capacity": 1, "memory": 0},
            "heads under a capacity are fused on replay images; set memory",
        ),
    ],
)
def test_settings_made_in_python_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RememberingError, match=message):
        Settings(**changes)


def test_numbers_of_numpy_and_torch_become_python_numbers() -> None:
    settings = Settings(rank=np.int64(2), lr=np.float32(0.5), seed=torch.tensor(3))  # type: ignore[arg-type]
    assert settings == Settings(rank=2, lr=0.5, seed=3)
    assert RouterSettings(layers=np.array([0, 2])).layers == (0, 2)  # type: ignore[arg-type]
    assert RouterSettings(layers=(np.int64(1),)).layers == (1,)  # type: ignore[arg-type]
    assert json.loads(json.dumps(schema.write(settings)))["seed"] == 3
    with pytest.raises(RememberingError, match=r"router.latent = '1.5' must be of type int"):
        RouterSettings(latent=np.float64(1.5))  # type: ignore[arg-type]


@given(st.dictionaries(st.sampled_from(list(Settings.__dataclass_fields__)), JSON))
def test_anything_is_read_or_rejected(data: dict[str, Any]) -> None:
    try:
        settings = schema.read(Settings, data, "x")
    except RememberingError:
        return
    assert schema.read(Settings, schema.write(settings), "x") == settings


@dataclass(frozen=True)
class Point:
    """A point."""

    x: Rate
    names: dict[str, tuple[Count | None, ...]]
    next: Point | None = None
    label: str | int = "none"


POINT = {"x": 0.5, "names": {"a": [1, None]}, "next": {"x": 1, "names": {}}, "label": 3}


def test_nested_values_are_read_and_written() -> None:
    point = schema.read(Point, POINT, "x.json")
    assert point == Point(0.5, {"a": (1, None)}, Point(1.0, {}), 3)
    assert schema.read(Point, schema.write(point), "x.json") == point


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": 1.5}, "x.json: x = '1.5' must be at most 1"),
        ({"names": {"a": [-1]}}, "names.a = '-1' must be at least 0"),
        ({"next": {"x": 0.1}}, "'next.names' is missing"),
        ({"next": {"x": 0.1, "names": {}, "y": 1}}, "unknown setting 'next.y'; known are x, names"),
        ({"label": 0.5}, "label = '0.5' must be of type int"),
    ],
)
def test_json_schema_rejects_what_the_reader_rejects(change: Any, message: str) -> None:
    validator = jsonschema.Draft202012Validator(schema.json_schema(Point))
    assert validator.is_valid(POINT)
    assert not validator.is_valid({**POINT, **change})
    with pytest.raises(RememberingError, match=message):
        schema.read(Point, {**POINT, **change}, "x.json")


@given(st.dictionaries(st.sampled_from(list(Settings.__dataclass_fields__)), JSON))
def test_json_schema_accepts_what_the_reader_accepts(data: dict[str, Any]) -> None:
    try:
        schema.read(Settings, data, "x")
    except RememberingError:
        return
    jsonschema.validate(data, schema.json_schema(Settings))


def test_differences_are_named_by_their_place() -> None:
    one, other = Settings(), Settings(rank=3, router=RouterSettings(latent=2))
    assert schema.differences(one, other) == ["rank", "router.latent"]
    assert schema.differences(one, one) == []


def test_values_nested_too_deeply_to_be_shown_are_refused() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    for data in (deep, {"rank": deep}, {"router": {"layers": deep}}):
        with pytest.raises(RememberingError, match="x is nested too deeply"):
            schema.read(Settings, data, "x")
