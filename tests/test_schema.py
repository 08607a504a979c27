"""Settings are read strictly, and what is written is read back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remembering import schema
from remembering.config import RouterSettings, Settings
from remembering.errors import RememberingError
from remembering.experiments.spec import Experiment, find, names

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
    ],
)
def test_settings_made_in_python_are_checked_too(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RememberingError, match=message):
        Settings(**changes)


def test_numbers_of_numpy_and_torch_become_plain() -> None:
    settings = Settings(rank=np.int64(2), lr=np.float32(0.5), seed=torch.tensor(3))  # type: ignore[arg-type]
    assert settings == Settings(rank=2, lr=0.5, seed=3)
    assert RouterSettings(layers=np.array([0, 2])).layers == (0, 2)  # type: ignore[arg-type]
    assert RouterSettings(layers=(np.int64(1),)).layers == (1,)  # type: ignore[arg-type]
    assert json.loads(json.dumps(schema.write(settings)))["seed"] == 3
    with pytest.raises(RememberingError, match=r"router.feature_rank = '1.5' must be of type int"):
        RouterSettings(feature_rank=np.float64(1.5))  # type: ignore[arg-type]


@given(st.dictionaries(st.sampled_from(list(Settings.__dataclass_fields__)), JSON))
def test_anything_is_read_or_refused(data: dict[str, Any]) -> None:
    try:
        settings = schema.read(Settings, data, "x")
    except RememberingError:
        return
    assert schema.read(Settings, schema.write(settings), "x") == settings


@pytest.mark.parametrize("name", names())
def test_every_experiment_reads_and_says_what_it_shows(name: str) -> None:
    file = find(name)
    assert file.description
    assert file.path.read_text().startswith(f"# remember run {name}")
    for small in (False, True):
        if small and "small" not in file.table:
            continue
        for experiment in file.variants(small).values():
            assert schema.read(Experiment, schema.write(experiment), "again") == experiment


def test_epochs_are_split_evenly() -> None:
    assert schema.read(Experiment, {"total_epochs": 50}, "x").epochs(5) == 10
    assert schema.read(Experiment, {"total_epochs": 3}, "x").epochs(5) == 1
    assert schema.read(Experiment, {"learning": {"epochs": 7}}, "x").epochs(5) == 7


def test_an_unknown_experiment_is_named(tmp_path: Any) -> None:
    with pytest.raises(RememberingError, match="no experiment 'digits5'; did you mean 'digits-5'"):
        find("digits5")
    with pytest.raises(RememberingError, match="cannot be read"):
        find(str(tmp_path / "none.toml"))
    (tmp_path / "x.toml").write_text("a = ")
    with pytest.raises(RememberingError, match="no valid TOML"):
        find(str(tmp_path / "x.toml"))
    for text in ("small = 3", "variants = 3", "[variants]\nx = 3"):
        (tmp_path / "x.toml").write_text(text)
        with pytest.raises(RememberingError, match="3 stands where a table"):
            find(str(tmp_path / "x.toml")).variants(small="small" in text)
