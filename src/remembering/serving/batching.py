"""Dynamic batching: predictions that arrive at the same time are computed together."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from remembering.inference.predict import predict
from remembering.inference.prediction import Prediction
from remembering.serving.inputs import Query
from remembering.serving.metrics import Metrics
from remembering.serving.options import Limits
from remembering.serving.problems import busy
from remembering.serving.served import Served


@dataclass(frozen=True, eq=False)
class _Waiting:
    query: Query
    future: Future[dict[str, Any]] = field(default_factory=Future)

    @property
    def pixels(self) -> int:
        return sum(image.shape[-1] * image.shape[-2] for image in self.query.images)


class Batcher:
    """A thread that answers queries in batches.

    A batch is started when it is full, when half of the clients wait, or after
    `limits.batch_seconds`. The number of clients is that of the queries of the last batch and those
    that arrived while it was computed. A single client is therefore answered at once, and of many
    clients, one half is answered while the other half sends. Queries with groups are answered one
    at a time, because groups are routed together.

    Args:
        current: Returns the model to use; called once for each batch.
        limits: Sizes of queue and batch.
        metrics: Counts batches and images.
        compute: Answers a batch. If None, `answer`.
    """

    def __init__(
        self,
        current: Callable[[], Served],
        limits: Limits,
        metrics: Metrics,
        compute: Callable[[Served, list[Query]], list[dict[str, Any]]] | None = None,
    ):
        self._current, self._limits, self._metrics = current, limits, metrics
        self._compute = compute or answer
        self._waiting: deque[_Waiting] = deque()
        self._images = self._pixels = 0
        self._answered = self._expected = 1
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="predictions", daemon=True)
        self._thread.start()

    @property
    def queued_images(self) -> int:
        """Number of images that wait."""
        return self._images

    def submit(self, query: Query) -> Future[dict[str, Any]]:
        """Queue a query.

        Returns:
            The answer, once it is known.

        Raises:
            ProblemError: If the queue is full or the server is stopping.
        """
        waiting = _Waiting(query)
        with self._changed:
            if self._closed:
                raise busy("the server is stopping; retry with another one")
            limits, images = self._limits, self._images + len(query.images)
            if self._waiting and (
                images > limits.queued_images
                or self._pixels + waiting.pixels > limits.queued_pixels
            ):
                self._metrics.rejected.add()
                raise busy("too many images wait for a prediction; retry later")
            self._add(waiting, 1)
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.future

    def close(self) -> None:
        """Answer what waits, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while taken := self._next():
            # A client that has disconnected has cancelled its future.
            batch = [one for one in taken if one.future.set_running_or_notify_cancel()]
            if not batch:
                continue
            queries = [waiting.query for waiting in batch]
            try:
                answers = self._compute(self._current(), queries)
            except Exception as error:  # reported to each client
                for waiting in batch:
                    waiting.future.set_exception(error)
                continue
            self._metrics.batch.observe(sum(len(query.images) for query in queries))
            for waiting, result in zip(batch, answers, strict=True):
                predictions = result["predictions"]
                self._metrics.images.add(len(predictions))
                self._metrics.unknown.add(sum(bool(p["unknown"]) for p in predictions))
                waiting.future.set_result(result)

    def _next(self) -> list[_Waiting]:
        """Wait for the next batch; empty when the batcher is closed."""
        with self._changed:
            self._expected = -(-(self._answered + len(self._waiting)) // 2)
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return []
            # From now, not from an arrival during the last batch: its clients may ask again soon.
            deadline = time.monotonic() + self._limits.batch_seconds
            while not self._closed and not self._is_due():
                if not self._changed.wait(deadline - time.monotonic()):
                    break
            batch = [self._take()]
            if batch[0].query.groups is None:
                images = len(batch[0].query.images)
                while (
                    self._waiting
                    and self._waiting[0].query.groups is None
                    and images + len(self._waiting[0].query.images) <= self._limits.batch_images
                ):
                    batch.append(self._take())
                    images += len(batch[-1].query.images)
            self._answered = len(batch)
            return batch

    def _is_due(self) -> bool:
        enough = len(self._waiting) >= self._expected or self._images >= self._limits.batch_images
        return enough or self._waiting[0].query.groups is not None

    def _take(self) -> _Waiting:
        waiting = self._waiting.popleft()
        self._add(waiting, -1)
        return waiting

    def _add(self, waiting: _Waiting, sign: int) -> None:
        self._images += sign * len(waiting.query.images)
        self._pixels += sign * waiting.pixels


def answer(served: Served, queries: list[Query]) -> list[dict[str, Any]]:
    """Predict the images of all queries together, and answer each query.

    Queries with groups must come alone.
    """
    images = [image for query in queries for image in query.images]
    rates = [query.false_alarm_rate for query in queries if query.false_alarm_rate is not None]
    prediction = predict(
        served.model.state,
        served.model.backbone,
        torch.stack(images) if len({image.shape for image in images}) == 1 else images,
        groups=queries[0].groups,
        false_alarm_rate=rates[0] if rates else None,  # the p-values do not depend on it
    )
    answers, start = [], 0
    rows = _rows(prediction, served, max(query.top_k for query in queries))
    for query in queries:
        own = rows[start : start + len(query.images)]
        start += len(own)
        answers.append(
            {"version": served.version, "predictions": [_fitted(row, query) for row in own]}
        )
    return answers


def _rows(prediction: Prediction, served: Served, top_k: int) -> list[dict[str, Any]]:
    """Return the answer to each image; tensors are converted once for all of them."""
    # Stable, so that equal probabilities do not change places with the size of the batch.
    ordered = prediction.probabilities.sort(dim=1, descending=True, stable=True)
    best, order = ordered.values[:, :top_k].tolist(), ordered.indices[:, :top_k].tolist()
    familiarity = torch.softmax(-prediction.scores.double(), 1).tolist()
    adapters = prediction.adapters.tolist()
    p_values = None if prediction.novelty is None else prediction.novelty.tolist()
    names = [task.name for task in served.model.state.tasks]
    return [
        {
            "label": prediction.labels[i],
            "probability": best[i][0],
            "top": [
                {"label": prediction.classes[column], "probability": value}
                for column, value in zip(order[i], best[i], strict=True)
            ],
            "task": prediction.tasks[i],
            "adapter": adapters[i],
            "tasks": [
                {"name": name, "probability": value}
                for name, value in zip(names, familiarity[i], strict=True)
            ],
            "p_value": p_values[i] if p_values else None,
            "unknown": None,
        }
        for i in range(len(prediction))
    ]


def _fitted(row: dict[str, Any], query: Query) -> dict[str, Any]:
    """Return what a query asked for of a row of its batch."""
    rate = query.false_alarm_rate
    p_value = row["p_value"] if rate else None
    return row | {
        "top": row["top"][: query.top_k],
        "p_value": p_value,
        "unknown": None if p_value is None or rate is None else p_value <= rate,
    }


def freeze_garbage_collection() -> None:
    """Exclude everything that was imported and loaded so far from garbage collection.

    A collection of all of it takes 0.2 seconds, in which nobody is answered.
    """
    gc.collect()
    gc.freeze()


def yield_to_predictions() -> None:
    """Lower the priority of this thread; on Linux, a thread and those it starts have their own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
