"""The experiments of the library, and specifications that cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remembering import schema
from remembering.config import RouterSettings, Settings
from remembering.errors import RememberingError
from remembering.experiments.folder import CONFIG, read_config
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
    def epochs(**table: object) -> int | None:
        return schema.read(Experiment, table, "x").published_settings(5).epochs

    assert epochs(total_epochs=50) == 10
    assert epochs(total_epochs=3) == 1
    assert epochs(learning={"epochs": 7}) == 7


def test_the_published_configuration_has_its_own_settings_and_the_seed_of_the_run() -> None:
    published = Settings.paper(rank=3, epochs=2, seed=9)
    experiment = Experiment(learning=Settings(seed=4), published=published, total_epochs=50)
    assert experiment.published_settings(5) == Settings.paper(rank=3, epochs=10, seed=4)
    assert experiment.model_settings(5) == Settings(seed=4), "the budget is that of the paper"
    alone = Experiment(learning=Settings.paper(), total_epochs=50)
    assert alone.model_settings(25) == alone.published_settings(25) == Settings.paper(epochs=2)


def test_published_settings_in_a_file_are_changes_of_those_of_the_paper() -> None:
    experiment = find("digits-5").variants()[None]
    router = RouterSettings(kind="autoencoder", epochs=200)
    paper = Settings.paper(rank=4, epochs=10, batch_size=32, lr=3e-3, router=router)
    assert (experiment.published, experiment.learning) == (paper, Settings())


def test_an_unknown_experiment_is_named(tmp_path: Path) -> None:
    with pytest.raises(RememberingError, match="no experiment 'digits5'; did you mean 'digits-5'"):
        find("digits5")
    with pytest.raises(RememberingError, match=r"none\.toml does not exist"):
        find(str(tmp_path / "none.toml"))
    (tmp_path / "x.toml").write_text("a = ")
    with pytest.raises(RememberingError, match="not valid TOML"):
        find(str(tmp_path / "x.toml"))
    for text in ("small = 3", "variants = 3", "[variants]\nx = 3"):
        (tmp_path / "x.toml").write_text(text)
        with pytest.raises(RememberingError, match="3 stands where a table"):
            find(str(tmp_path / "x.toml")).variants(small="small" in text)


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 10**5,
        "x = " + "{a=" * 10**5,
        "description = " + "[" * 900 + "]" * 900,
        "description" + ".a" * 2000 + " = 1",
        "[learning.router.layers" + ".a" * 2000 + "]",
    ],
    ids=["arrays", "tables", "array", "key", "table"],
)
def test_deep_nesting_is_a_clear_error(text: str, tmp_path: Path) -> None:
    for name in ("x.toml", CONFIG):
        (tmp_path / name).write_text(text)
    with pytest.raises(RememberingError, match=r"not valid TOML|nested too deeply|must be"):
        find(str(tmp_path / "x.toml")).variants()
    with pytest.raises(RememberingError, match=r"not valid TOML|nested too deeply|unknown setting"):
        read_config(tmp_path)


def test_a_pipe_is_refused_instead_of_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.toml")
    with pytest.raises(RememberingError, match="not a regular file"):
        find(str(tmp_path / "x.toml"))
