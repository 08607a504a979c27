"""The experiments of the library, and specifications that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from remembering import schema
from remembering.errors import RememberingError
from remembering.experiments.spec import Experiment, find, names


@pytest.mark.parametrize("name", names())
def test_every_experiment_can_be_read_and_has_a_description(name: str) -> None:
    file = find(name)
    assert file.description
    assert file.path.read_text().startswith(f"# remember run {name}")
    for small in (False, True):
        if small and "small" not in file.table:
            continue
        for experiment in file.variants(small).values():
            assert schema.read(Experiment, schema.write(experiment), "again") == experiment


def test_epochs_are_divided_evenly() -> None:
    assert schema.read(Experiment, {"total_epochs": 50}, "x").epochs(5) == 10
    assert schema.read(Experiment, {"total_epochs": 3}, "x").epochs(5) == 1
    assert schema.read(Experiment, {"learning": {"epochs": 7}}, "x").epochs(5) == 7


def test_an_unknown_experiment_is_named(tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match="no experiment 'digits5'; did you mean 'digits-5'"):
        find("digits5")
    with pytest.raises(RememberingError, match="cannot be read"):
        find(str(tmp_path / "none.toml"))
    (tmp_path / "x.toml").write_text("a = ")
    with pytest.raises(RememberingError, match="not valid TOML"):
        find(str(tmp_path / "x.toml"))
    for text in ("small = 3", "variants = 3", "[variants]\nx = 3"):
        (tmp_path / "x.toml").write_text(text)
        with pytest.raises(RememberingError, match="3 stands where a table"):
            find(str(tmp_path / "x.toml")).variants(small="small" in text)
