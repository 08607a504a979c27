"""Checks that the parts of a state fit together, for reading and before a save becomes current."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from remembering.backbones.backbone import Backbone
from remembering.state import ModelState
from remembering.storage.artifacts import artifact_key, unusable


def check_state(state: ModelState, backbone: Backbone, path_of: Callable[[str], Path]) -> None:
    """Check shapes, types and cross references beyond those that `ModelState` checks itself.

    Args:
        state: The state.
        backbone: Its backbone.
        path_of: Returns the path of an artifact, by its key.

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
    dim = feature_dim(state, backbone)
    for task in state.tasks:
        try:
            state.router.check(task.number, dim, len(task.classes))
        except ValueError as error:
            path = path_of(artifact_key("routers", task.number))
            raise unusable(path, str(error)) from error
    try:
        state.router.check_shared(dim, sum(len(task.classes) for task in state.tasks))
    except ValueError as error:
        path = path_of(artifact_key("shared")) if state.router.shared else Path("the router")
        raise unusable(path, str(error)) from error


@torch.no_grad()
def feature_dim(state: ModelState, backbone: Backbone) -> int:
    """Return the number of features that the router reads, from one blank image."""
    size = backbone.image_size
    image = torch.zeros(1, backbone.preprocessing.channels, size, size, dtype=torch.uint8)
    tokens = backbone.embed(image)
    return state.router.features([tokens] * len(state.settings.router.layers)).shape[1]
