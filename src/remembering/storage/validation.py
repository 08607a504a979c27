"""Checks that the parts of a state fit together, for reading and before a save becomes current."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from remembering.backbones.backbone import Backbone
from remembering.routing import Router
from remembering.state import ModelState, TaskRecord
from remembering.storage.artifacts import artifact_key, unusable


def check_state(
    state: ModelState,
    backbone: Backbone,
    path_of: Callable[[str], Path],
    is_new: Callable[[str], bool] = lambda _: True,
) -> None:
    """Check shapes, types and cross references beyond those that `ModelState` checks itself.

    Args:
        state: The state.
        backbone: Its backbone.
        path_of: Returns the path of an artifact, by its key.
        is_new: Returns whether an artifact has not been checked yet, by its key.

    Raises:
        StorageError: If an artifact does not fit the others or the backbone.
    """
    trained = {head.trained for head in state.heads.values()}
    for number, head in state.heads.items():
        path = path_of(artifact_key("heads", number))
        if not {c for task in state.served_by(number) for c in task.classes} <= {*head.classes}:
            raise unusable(path, "it lacks classes of its tasks")
        if len(trained) > 1:
            raise unusable(path, "some heads are trained and others are not")
    for task in state.tasks:
        memory = state.memories.get(task.number)
        if memory is not None and not {*memory.labels} <= {*task.classes}:
            path = path_of(artifact_key("memory", task.number))
            raise unusable(path, "its labels are not those of its task")
    if not state.tasks:
        return
    dim = _feature_dim(state, backbone)
    _check_experts(state.router, "routers", 0, state.tasks, dim, path_of, is_new)
    for number, domain in state.domains.items():
        with _named(path_of, artifact_key("domains", number)):
            domain.check(dim)
    dims = {"router": dim} if state.router.shared else {}
    dim = 2 * backbone.dim * len(state.settings.classifier.layers)
    if state.classifiers:
        dims["classifier"] = dim
    for number, classifier in state.classifiers.items():
        _check_experts(
            classifier, "classifiers", number, state.served_by(number), dim, path_of, is_new
        )
    for number, reference in state.references.items():
        served = state.served_by(number)
        _check_experts(reference.classifier, "references", number, served, dim, path_of, is_new)
    for number, share in state.shares.items():
        if share.dims != dims:
            path = path_of(artifact_key("shares", number))
            raise unusable(path, f"its features are {dict(share.dims)} instead of {dims}")


def _check_experts(
    router: Router,
    kind: str,
    number: int,
    tasks: tuple[TaskRecord, ...],
    dim: int,
    path_of: Callable[[str], Path],
    is_new: Callable[[str], bool],
) -> None:
    """Check the experts of these tasks, and what they have in common."""
    for task in tasks:
        key = artifact_key(kind, task.number)
        if is_new(key):
            with _named(path_of, key):
                router.check(task.number, dim, len(task.classes))
    shared = artifact_key(f"{kind} shared", number)
    with _named(path_of if router.shared else lambda _: Path("the router"), shared):
        router.check_shared(dim, sum(len(task.classes) for task in tasks))


@contextmanager
def _named(path_of: Callable[[str], Path], key: str) -> Iterator[None]:
    """Turn a ValueError into an error that names the artifact."""
    try:
        yield
    except ValueError as error:
        raise unusable(path_of(key), str(error)) from error


@torch.no_grad()
def _feature_dim(state: ModelState, backbone: Backbone) -> int:
    """Return the number of features that the router reads, from one blank image."""
    size = backbone.image_size
    image = torch.zeros(1, backbone.preprocessing.channels, size, size, dtype=torch.uint8)
    tokens = backbone.embed(image)
    return state.router.features([tokens] * len(state.settings.router.layers)).shape[1]
