"""Dynamic batching: what is combined, what is refused, and that answers do not change."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from remembering.model import RememberingTransformer
from remembering.serving import batching
from remembering.serving.batching import Batcher, answer
from remembering.serving.inputs import Query
from remembering.serving.metrics import Metrics
from remembering.serving.options import Limits
from remembering.serving.problems import ProblemError
from remembering.serving.served import Served


@pytest.fixture(scope="module")
def served(trained: Path) -> Served:
    return Served(7, RememberingTransformer.load(trained))


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of queries of each batch."""
    sizes: list[int] = []

    def counted(served: Served, queries: list[Query]) -> list[dict[str, Any]]:
        sizes.append(len(queries))
        return answer(served, queries)

    monkeypatch.setattr(batching, "answer", counted)
    return sizes


def image(seed: int = 0, side: int = 16) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, side, side), generator=rng, dtype=torch.uint8)


def test_answers_do_not_depend_on_the_batch(served: Served) -> None:
    queries = [Query([image(i, 8 + i), image(i)], top_k=3, false_alarm_rate=0.1) for i in range(6)]
    queries.append(Query([image(9)]))
    together = answer(served, queries)
    for query, batched in zip(queries, together, strict=True):
        (alone,) = answer(served, [query])
        assert batched["version"] == alone["version"] == 7
        for one, other in zip(batched["predictions"], alone["predictions"], strict=True):
            assert one["label"] == other["label"]
            assert one["task"] == other["task"]
            assert one["unknown"] == other["unknown"]
            assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)
    assert together[-1]["predictions"][0]["p_value"] is None


def test_queries_that_wait_are_combined(served: Served, batches: list[int]) -> None:
    gate = threading.Event()

    def current() -> Served:
        gate.wait()
        return served

    batcher = Batcher(current, Limits(), Metrics())
    first = batcher.submit(Query([image()]))
    while batcher.queued_images:  # the first is taken, and waits for the model
        time.sleep(0.001)
    rest = [batcher.submit(Query([image(i)])) for i in range(10)]
    gate.set()
    for future in (first, *rest):
        assert future.result(10)["version"] == 7
    batcher.close()
    assert batches == [1, 10]


def test_a_single_client_does_not_wait(served: Served) -> None:
    batcher = Batcher(lambda: served, Limits(batch_seconds=5.0), Metrics())
    started = time.monotonic()
    for _ in range(3):
        batcher.submit(Query([image()])).result(10)
    assert time.monotonic() - started < 4
    batcher.close()


def test_a_batch_does_not_wait_longer_than_allowed(served: Served, batches: list[int]) -> None:
    batcher = Batcher(lambda: served, Limits(batch_seconds=0.2), Metrics())
    batcher._expected = 50  # as if the last batch had been large
    started = time.monotonic()
    batcher.submit(Query([image()])).result(10)
    assert 0.15 < time.monotonic() - started < 5
    batcher.close()


def test_queries_with_groups_are_answered_alone(served: Served, batches: list[int]) -> None:
    gate = threading.Event()

    def current() -> Served:
        gate.wait()
        return served

    batcher = Batcher(current, Limits(), Metrics())
    queries = [
        Query([image(0)]),
        Query([image(1), image(2)], groups=["a", "a"]),
        Query([image(3)]),
        Query([image(4)]),
    ]
    futures = [batcher.submit(query) for query in queries]
    gate.set()
    grouped = futures[1].result(10)["predictions"]
    assert grouped[0]["task"] == grouped[1]["task"]
    for future in futures:
        future.result(10)
    batcher.close()
    assert batches == [1, 1, 2]


def test_a_full_queue_is_refused(served: Served) -> None:
    gate = threading.Event()

    def current() -> Served:
        gate.wait()
        return served

    metrics = Metrics()
    batcher = Batcher(current, Limits(queued_images=4, queued_pixels=4000), metrics)
    futures: list[Future[dict[str, Any]]] = [batcher.submit(Query([image()]))]
    while batcher.queued_images:
        time.sleep(0.001)
    futures += [batcher.submit(Query([image(i)])) for i in range(3)]
    with pytest.raises(ProblemError, match="too many images wait") as refused:
        batcher.submit(Query([image(), image()]))
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
    with pytest.raises(ProblemError, match="too many images wait"):
        batcher.submit(Query([image(side=64)]))
    gate.set()
    assert all(future.result(10) for future in futures)
    batcher.close()
    assert "remembering_rejected_predictions_total 2" in metrics.text({})


def test_an_error_reaches_every_client_of_the_batch(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(batching, "answer", fail)
    batcher = Batcher(lambda: served, Limits(), Metrics())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            batcher.submit(Query([image()])).result(10)
    batcher.close()


def test_a_client_that_disconnects_does_not_stop_the_thread(served: Served) -> None:
    gate = threading.Event()

    def current() -> Served:
        gate.wait()
        return served

    batcher = Batcher(current, Limits(), Metrics())
    first = batcher.submit(Query([image()]))
    while batcher.queued_images:
        time.sleep(0.001)
    gone = batcher.submit(Query([image()]))
    assert gone.cancel()
    gate.set()
    assert first.result(10)
    assert batcher.submit(Query([image()])).result(10)
    batcher.close()


def test_closing_answers_what_waits_and_refuses_more(served: Served) -> None:
    batcher = Batcher(lambda: served, Limits(), Metrics())
    futures = [batcher.submit(Query([image(i)])) for i in range(20)]
    batcher.close()
    assert all(future.done() and future.result() for future in futures)
    with pytest.raises(ProblemError, match="stopping"):
        batcher.submit(Query([image()]))
