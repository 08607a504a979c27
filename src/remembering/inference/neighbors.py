"""The replay images that are most similar to an image, for explanations."""

from __future__ import annotations

import torch
from torch import Tensor

from remembering.backbones.backbone import Backbone
from remembering.data.images import ImageSequence, joined, subset
from remembering.inference.classify import adapter_outputs
from remembering.inference.encoding import deep_task_features
from remembering.inference.prediction import Neighbor
from remembering.inference.token_cache import TokenCache
from remembering.state import ModelState


@torch.inference_mode()
def nearest_kept(
    state: ModelState, backbone: Backbone, images: ImageSequence, adapters: Tensor, k: int
) -> list[list[Neighbor]]:
    """Return the k most similar replay images of each image, the most similar first.

    Candidates are the replay images of the tasks of the adapter that answers. Distances are
    Mahalanobis distances under the covariance of its classes, or Euclidean ones between the logits
    of its head.

    Args:
        state: What was learned.
        backbone: The frozen backbone.
        images: The images.
        adapters: Number of each image's adapter, (n,).
        k: Number of replay images.
    """
    found: list[list[Neighbor]] = [[] for _ in range(len(adapters))]
    for number in adapters.unique().tolist():
        served = [task for task in state.served_by(number) if task.number in state.memories]
        if not served:
            continue
        memories = [state.memories[task.number] for task in served]
        kept = joined([memory.images for memory in memories])
        shown = [
            (label, task.name)
            for task, memory in zip(served, memories, strict=True)
            for label in memory.labels
        ]
        rows = (adapters == number).nonzero().flatten()
        candidates = _coordinates(state, backbone, kept, number)
        queries = _coordinates(state, backbone, subset(images, rows), number)
        nearest = torch.cdist(queries, candidates).topk(min(k, len(shown)), dim=1, largest=False)
        for row, distances, places in zip(rows.tolist(), *nearest, strict=True):
            near = zip(distances.tolist(), places.tolist(), kept[places], strict=True)
            found[row] = [
                Neighbor(label, task, distance, image)
                for distance, place, image in near
                for label, task in [shown[place]]
            ]
    return found


def _coordinates(
    state: ModelState, backbone: Backbone, images: ImageSequence, adapter: int
) -> Tensor:
    """Return the position of images in the space in which an adapter tells classes apart."""
    settings = state.settings
    if settings.classifier.kind == "head":
        return adapter_outputs(state, backbone, images, adapter).plain.double()
    tokens = TokenCache(backbone, images, settings.first_layer)
    features = deep_task_features(tokens, settings.classifier.layers, state.adapters[adapter])
    return state.classifiers[adapter].gaussians.covariance.whiten(features.double()).cpu()
