"""Add images to classes that are already learned: statistics change, no adapter is trained."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.data.images import ImageSequence
from remembering.errors import RememberingError
from remembering.inference.encoding import FlippedImages, deep_task_features, encode_task
from remembering.inference.token_cache import TokenCache
from remembering.routing.gaussian import GaussianRouter
from remembering.state import ModelState, TaskRecord


def check_refinable(state: ModelState) -> None:
    """Raise unless classes and their images can be changed without training."""
    state.router.check_refinable()
    if state.settings.classifier.kind == "head":
        raise RememberingError(
            "a head must be retrained to change its classes or their images: forget the task and "
            'learn it again, or use classifier.kind = "gaussian"'
        )


def refine(
    state: ModelState, backbone: Backbone, task: TaskRecord, images: ImageSequence, targets: Tensor
) -> ModelState:
    """Add images to the statistics of a task, as if they had been part of it.

    Args:
        state: What was learned.
        backbone: The frozen backbone.
        task: The task.
        images: The images.
        targets: Index of each image's class within the task.

    Raises:
        RememberingError: If the router or the classifier cannot be refined.
    """
    check_refinable(state)
    settings, adapter = state.settings, task.adapter
    encoded = encode_task(backbone, state.router, settings.first_layer, images)
    tokens, classifier = encoded.token_cache, state.classifiers[adapter]
    views = [tokens]
    if classifier.uses_flip:
        views.append(TokenCache(backbone, FlippedImages(images), settings.first_layer))
    repeated = targets.repeat(len(views))

    def features(weights: Adapter) -> Tensor:
        layers = settings.classifier.layers
        return torch.cat([deep_task_features(view, layers, weights) for view in views])

    seen = classifier.samples(task.number, features(state.adapters[adapter]), repeated)
    classifiers = {**state.classifiers, adapter: classifier.with_samples(task.number, seen)}
    references = dict(state.references)
    if reference := references.get(adapter):
        exact = reference.classifier
        seen = exact.samples(task.number, features(reference.adapter), repeated)
        exact = exact.with_samples(task.number, seen)
        references[adapter] = replace(reference, classifier=exact)
    router = state.router
    assert isinstance(router, GaussianRouter)  # others cannot be refined
    routed = router.samples(task.number, encoded.features, targets)
    shares = dict(state.shares)
    if share := shares.get(task.number):
        added = {"router": routed["scatter"], "classifier": seen["scatter"]}
        shares[task.number] = share.plus(**added)
    domain, no_classes = state.domains[adapter], torch.zeros(0, dtype=torch.float64)
    domain = domain.joined(encoded.features.cpu(), no_classes)
    record = replace(task, images=task.images + len(images))
    return replace(
        state,
        tasks=tuple(record if other is task else other for other in state.tasks),
        router=router.with_samples(task.number, routed),
        classifiers=classifiers,
        references=references,
        domains={**state.domains, adapter: domain},
        shares=shares,
    )
