"""Predictions in a process of their own, so that HTTP and learning do not hold them up."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from remembering.serving.batching import answer, freeze_garbage_collection
from remembering.serving.inputs import Query
from remembering.serving.served import Identity, ModelFolder, Served, new_model

logger = logging.getLogger("remembering.serving")
MIN_QUERIES = 8
"""The process is started when this many clients ask at once; fewer do not keep two cores busy."""
_Message = tuple[list[NDArray[Any]], int, float | None, list[str | int] | None]


class PredictionProcess:
    """Answers batches of queries in another process, once several clients ask at the same time.

    The process loads the model from its folder, and again when there is a new version. Until it has
    the version that is asked for, and if it fails, queries are answered in this process. It ends
    with this one.

    Args:
        folder: Folder of the model.
    """

    def __init__(self, folder: ModelFolder):
        self._folder = folder
        self._connection: Connection | None = None
        self._loaded: Identity = "", -1
        self._is_loading = False
        self._is_off = (os.cpu_count() or 1) < 2

    def answer(self, served: Served, queries: list[Query]) -> list[dict[str, Any]]:
        """Predict the images of all queries together, and answer each query."""
        if self._is_off or served.model.backbone.device.type != "cpu":
            return answer(served, queries)
        if self._connection is None:
            if len(queries) >= MIN_QUERIES:
                self._start()
            return answer(served, queries)
        try:
            answers = self._ask(self._connection, served.identity, queries)
        except (OSError, EOFError) as error:
            logger.warning("the process of predictions ended (%r); this one goes on alone", error)
            self.close()
            answers = None
        return answer(served, queries) if answers is None else answers

    def close(self) -> None:
        """Let the process end; all further queries are answered in this one."""
        self._is_off = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _start(self) -> None:
        # Not forked: the locks of other threads would stay locked.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, str(self._folder.path), self._folder.backbone)
        context.Process(target=_run, args=arguments, name="predictions", daemon=True).start()
        theirs.close()
        self._is_loading = True

    def _ask(
        self, connection: Connection, identity: Identity, queries: Sequence[Query]
    ) -> list[dict[str, Any]] | None:
        """Return the answers of the process, or None if it cannot answer now."""
        if self._is_loading and connection.poll():
            self._loaded, self._is_loading = connection.recv(), False
        if not self._is_loading and self._is_behind(identity):
            connection.send(None)
            self._is_loading = True
        if self._is_loading or self._loaded != identity:
            return None
        connection.send([_message(query) for query in queries])
        answers: list[dict[str, Any]] | None = connection.recv()
        return answers

    def _is_behind(self, identity: Identity) -> bool:
        """Whether the process has an older state or another model; it may also be ahead."""
        (model_id, version), (loaded_id, loaded) = identity, self._loaded
        return model_id != loaded_id or version > loaded


def _message(query: Query) -> _Message:
    # Arrays are sent by value; tensors would be moved to shared memory, which takes longer.
    images = [image.numpy() for image in query.images]
    return images, query.top_k, query.false_alarm_rate, query.groups


def _query(message: _Message) -> Query:
    images, top_k, false_alarm_rate, groups = message
    return Query([torch.from_numpy(image) for image in images], top_k, false_alarm_rate, groups)


def _run(connection: Connection, path: str, backbone: str | None) -> None:
    """Answer queries until the other process closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the other one decides
    folder = ModelFolder(Path(path), new_model, backbone)
    served = folder.load()
    freeze_garbage_collection()
    try:
        connection.send(served.identity)
        while True:
            messages: list[_Message] | None = connection.recv()
            if messages is None:
                served = folder.load(served.model.backbone)
                connection.send(served.identity)
                continue
            try:
                connection.send(answer(served, [_query(message) for message in messages]))
            except Exception:  # the other process meets the same error and reports it
                connection.send(None)
    except (EOFError, OSError):
        return
