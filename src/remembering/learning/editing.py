"""Change the classes of a learned task: statistics change at once, no adapter is trained."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.data.conversion import as_images
from remembering.data.images import ImagesLike
from remembering.data.task import Label, LabelsLike, Task
from remembering.errors import RememberingError
from remembering.inference.encoding import FlippedImages, deep_task_features, encode_task
from remembering.inference.token_cache import TokenCache
from remembering.learning.forget import first_reference
from remembering.learning.refine import check_refinable, refine
from remembering.learning.replay import draw, kept_images
from remembering.routing.classifier import GaussianClassifier
from remembering.routing.domain import Domain, task_moments
from remembering.routing.editing import class_expert, with_class, without_class
from remembering.routing.gaussian import GaussianRouter
from remembering.routing.symmetric import restore
from remembering.runtime.seeding import generator
from remembering.state import ModelState, ReplayMemory, TaskRecord


def add_images(
    state: ModelState, backbone: Backbone, name: str, images: ImagesLike, labels: LabelsLike
) -> ModelState:
    """Add images to classes of a task, as if they had been part of it.

    Raises:
        RememberingError: If the task lacks a label, or its classes cannot be changed without
            training.
    """
    record, batch = state.task(name), Task(name, images, labels)
    missing = [label for label in batch.classes if label not in record.classes]
    if missing:
        raise RememberingError(
            f"task '{name}' has no class '{missing[0]}'; add it as a new class first"
        )
    targets = torch.tensor([record.classes.index(label) for label in batch.labels])
    return refine(state, backbone, record, batch.images, targets)


def add_class(
    state: ModelState, backbone: Backbone, name: str, label: Label, images: ImagesLike
) -> ModelState:
    """Add a class to a task, in the feature space of the task's adapter.

    Args:
        state: What was learned.
        backbone: The frozen backbone.
        name: Name of the task.
        label: Label of the new class.
        images: At least two images of the class.

    Raises:
        RememberingError: If the task already has the class, or its classes cannot be changed
            without training.
    """
    check_refinable(state)
    record, sequence = state.task(name), as_images(images)
    if label in record.classes:
        raise RememberingError(f"task '{name}' already has a class '{label}'; add images to it")
    if type(label) is not type(record.classes[0]):
        raise RememberingError(
            f"the labels of the model are of type {type(record.classes[0]).__name__}; "
            f"{label!r} is a {type(label).__name__}"
        )
    if len(sequence) < 2:
        raise RememberingError(f"class '{label}' needs at least two images")
    settings, adapter, number = state.settings, record.adapter, record.number
    router, classifier = state.router, state.classifiers[adapter]
    assert isinstance(router, GaussianRouter)  # others cannot be refined
    encoded = encode_task(backbone, router, settings.first_layer, sequence)
    views = [encoded.token_cache]
    if classifier.uses_flip:
        views.append(TokenCache(backbone, FlippedImages(sequence), settings.first_layer))
    targets = torch.zeros(len(sequence), dtype=torch.long)
    rng = generator(settings.seed, "classifier")
    held_out = classifier.choose_calibration(targets, rng)

    def extended(old: GaussianClassifier, weights: Adapter) -> tuple[GaussianClassifier, Tensor]:
        layers = settings.classifier.layers
        plain, *flipped = (deep_task_features(view, layers, weights) for view in views)
        expert = old.fit(
            plain, targets, rng, flipped=flipped[0] if flipped else None, held_out=held_out
        )
        return with_class(old, number, expert), restore(expert)

    classes, scatter = extended(classifier, state.adapters[adapter])
    references = dict(state.references)
    if reference := references.get(adapter):
        exact, scatter = extended(reference.classifier, reference.adapter)
        references[adapter] = replace(reference, classifier=exact)
    routed = router.fit(encoded.features, targets, generator(settings.seed, "router"))
    shares = dict(state.shares)
    if share := shares.get(number):
        shares[number] = share.plus(router=restore(routed), classifier=scatter)
    memories = dict(state.memories)
    if memory := memories.get(number):
        size = max(2, len(memory.labels) // len(record.classes))
        checks = held_out[: round(size * memory.held_out / len(memory.labels))]
        rng = generator(settings.seed, "replay")
        chosen = draw(targets, size - len(checks), held_out, rng)
        new = kept_images(backbone, sequence, torch.cat([chosen, checks]))
        memories[number] = _joined(backbone, memory, new, label, len(checks))
    return replace(
        _with_record(state, record, (*record.classes, label), record.images + len(sequence)),
        router=with_class(router, number, routed),
        classifiers={**state.classifiers, adapter: classes},
        domains={**state.domains, adapter: _with_domain(state, record, encoded.features, targets)},
        references=references,
        memories=memories,
        shares=shares,
    )


def remove_class(state: ModelState, name: str, label: Label) -> ModelState:
    """Remove a class from a task.

    Its means and held-out images are removed exactly; what it contributed to the scatter within
    classes is taken to be that of its task, in proportion to its images. Forgetting the task is
    still exact.

    Raises:
        RememberingError: If the task lacks the class, or has no other one, or its classes cannot be
            changed without training.
    """
    check_refinable(state)
    record = state.task(name)
    if label not in record.classes:
        known = ", ".join(f"'{known}'" for known in record.classes)
        raise RememberingError(f"task '{name}' has no class '{label}'; its classes are {known}")
    if len(record.classes) == 1:
        raise RememberingError(f"'{label}' is the only class of task '{name}'; forget the task")
    adapter, number, position = record.adapter, record.number, record.classes.index(label)
    router, classifier = state.router, state.classifiers[adapter]
    assert isinstance(router, GaussianRouter)  # others cannot be refined
    share = state.shares.get(number)
    parts = share.parts if share else {}
    own, exact = parts.get("classifier"), classifier
    references = dict(state.references)
    if reference := references.get(adapter):
        exact = reference.classifier
        reduced = without_class(exact, number, position, own)
        references[adapter] = replace(reference, classifier=reduced)
        own = None  # the carried statistics are approximate
    removed = class_expert(router.experts[number], position)
    images = int(removed["counts"].sum()) + len(removed["calibration_targets"])
    moments, shares = None, dict(state.shares)
    if share:
        left = {
            "router": _share_of_others(router, number, position),
            "classifier": _share_of_others(exact, number, position),
        }
        gone = share.scaled({part: 1 - factor for part, factor in left.items()})
        shares[number] = share.scaled(left)
        moments = task_moments(removed, gone.parts["router"])
    classes = [first_reference(state, record) + position]
    memories = dict(state.memories)
    if memory := memories.pop(number, None):
        kept = torch.tensor([other != label for other in memory.labels])
        if kept.any():
            labels = tuple(other for other in memory.labels if other != label)
            held_out = int(kept[len(kept) - memory.held_out :].sum())
            memories[number] = ReplayMemory(memory.images[kept], labels, held_out)
    rest = tuple(other for other in record.classes if other != label)
    return replace(
        _with_record(state, record, rest, record.images - images),
        router=without_class(router, number, position, parts.get("router")),
        classifiers={
            **state.classifiers,
            adapter: without_class(classifier, number, position, own),
        },
        domains={
            **state.domains,
            adapter: state.domains[adapter].without(classes, images, moments),
        },
        references=references,
        memories=memories,
        shares=shares,
    )


def _with_record(
    state: ModelState, record: TaskRecord, classes: tuple[Label, ...], images: int
) -> ModelState:
    changed = replace(record, classes=classes, images=images)
    return replace(state, tasks=tuple(changed if t is record else t for t in state.tasks))


def _with_domain(
    state: ModelState, record: TaskRecord, features: Tensor, targets: Tensor
) -> Domain:
    """Return the domain of a task's adapter with a new class of the task."""
    domain, features = state.domains[record.adapter], features.cpu()
    novelties = domain.novelties(features, targets)
    joined = domain.joined(features, novelties)
    stop = first_reference(state, record) + len(record.classes)
    old = domain.references
    return replace(joined, references=torch.cat([old[:stop], novelties, old[stop:]]))


def _share_of_others(router: GaussianRouter, task: int, position: int) -> float:
    """Return the share of a task's samples that belong to its other classes."""
    counts = router.experts[task]["counts"]
    return float(1 - counts[position] / counts.sum())


def _joined(
    backbone: Backbone, memory: ReplayMemory, new: Tensor, label: Label, held_out: int
) -> ReplayMemory:
    """Add replay images of one class, the last of which are held out."""
    split, own = len(memory.labels) - memory.held_out, len(new) - held_out
    old = memory.images
    if old.shape[1:] != new.shape[1:]:
        old, new = (backbone.shrink(images).cpu() for images in (old, new))
    images = torch.cat([old[:split], new[:own], old[split:], new[own:]])
    labels = (
        *memory.labels[:split],
        *([label] * own),
        *memory.labels[split:],
        *([label] * held_out),
    )
    return ReplayMemory(images, labels, memory.held_out + held_out)
