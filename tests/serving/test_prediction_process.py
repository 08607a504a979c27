"""The process of predictions: its answers, new versions, and what happens when it ends."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import learned

from remembering.backbones.backbone import Backbone
from remembering.model import RememberingTransformer
from remembering.serving import prediction_process
from remembering.serving.batching import answer
from remembering.serving.inputs import Query
from remembering.serving.prediction_process import MIN_QUERIES, PredictionProcess
from remembering.serving.served import ModelFolder, Served, new_model

pytestmark = pytest.mark.integration
SECONDS = 60


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> ModelFolder:
    copied = shutil.copytree(trained, tmp_path / "model")
    return ModelFolder(copied, new_model)


@pytest.fixture
def process(folder: ModelFolder) -> Iterator[PredictionProcess]:
    made = PredictionProcess(folder)
    yield made
    made.close()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of queries of each batch that this process answers."""
    sizes: list[int] = []

    def counted(served: Served, queries: list[Query]) -> list[dict[str, Any]]:
        sizes.append(len(queries))
        return answer(served, queries)

    monkeypatch.setattr(prediction_process, "answer", counted)
    return sizes


def some_queries(count: int) -> list[Query]:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 1, 28, 28), generator=rng, dtype=torch.uint8)
    return [Query([image], top_k=2, false_alarm_rate=0.1) for image in images]


def started(process: PredictionProcess, served: Served, here: list[int]) -> None:
    """Ask until the process answers."""
    deadline = time.monotonic() + SECONDS
    queries = some_queries(MIN_QUERIES)
    while time.monotonic() < deadline:
        before = len(here)
        process.answer(served, queries)
        if len(here) == before:
            return
        time.sleep(0.1)
    pytest.fail("the process did not answer")


def test_few_clients_start_no_process(
    folder: ModelFolder, process: PredictionProcess, here: list[int]
) -> None:
    served, before = folder.load(), len(multiprocessing.active_children())
    for _ in range(3):
        process.answer(served, some_queries(MIN_QUERIES - 1))
    assert here == [MIN_QUERIES - 1] * 3
    assert len(multiprocessing.active_children()) == before


def test_its_answers_those_of_a_new_version_and_its_end(
    folder: ModelFolder, process: PredictionProcess, here: list[int]
) -> None:
    served = folder.load()
    started(process, served, here)
    queries = some_queries(3)  # once it runs, it answers few clients, too
    done = len(here)
    assert process.answer(served, queries) == answer(served, queries)
    assert len(here) == done

    model = RememberingTransformer.load(folder.path)
    model.rename_task(model.tasks[0].name, "renamed")
    model.save(folder.path)
    newer = folder.load()
    assert newer.version == served.version + 1
    # The first batch of the new version is answered here, while the process loads it.
    first = process.answer(newer, queries)
    assert len(here) == done + 1
    assert {one["version"] for one in first} == {newer.version}
    started(process, newer, here)
    assert process.answer(newer, queries) == answer(newer, queries)
    assert "renamed" in {task["name"] for task in first[0]["predictions"][0]["tasks"]}

    (child,) = multiprocessing.active_children()
    process.close()
    child.join(SECONDS)
    assert child.exitcode == 0


def test_another_model_with_as_many_saves_replaces_the_one_before(
    folder: ModelFolder, process: PredictionProcess, here: list[int], backbone: Backbone
) -> None:
    served, queries = folder.load(), some_queries(3)
    started(process, served, here)
    shutil.rmtree(folder.path)
    learned(backbone, 1, seed=1).save(folder.path)
    other = folder.load()
    assert other.version == served.version
    assert other.identity != served.identity
    started(process, other, here)
    done = len(here)
    assert process.answer(other, queries) == answer(other, queries)
    assert len(here) == done


def test_queries_are_answered_after_it_was_killed(
    folder: ModelFolder,
    process: PredictionProcess,
    here: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    served, queries = folder.load(), some_queries(MIN_QUERIES)
    started(process, served, here)
    (child,) = multiprocessing.active_children()
    child.kill()
    child.join(SECONDS)
    done = len(here)
    assert process.answer(served, queries) == answer(served, queries)
    assert len(here) == done + 1
    assert "the process of predictions ended" in caplog.text
    process.answer(served, queries)
    assert not multiprocessing.active_children()  # it is not started again
