"""The default way to learn a task: join a familiar adapter or train one, then fit class Gaussians.

A task whose images are familiar to an adapter joins it: only statistics are fitted. A novel task
trains an adapter of its own. The number of adapters grows with domains, not with tasks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.config import Settings
from remembering.data.augmentation import QUARTERS
from remembering.data.images import Subset
from remembering.data.task import Task
from remembering.inference.encoding import EncodedTask, FlippedImages, deep_task_features
from remembering.inference.token_cache import TokenCache
from remembering.learning.checkpoint import Checkpoint, training_key
from remembering.learning.consolidate import is_worse
from remembering.learning.replay import draw, kept_images
from remembering.learning.training import RotatedTrainingSet, TrainingSet, train
from remembering.routing import Expert
from remembering.routing.classifier import GaussianClassifier
from remembering.routing.domain import Domain
from remembering.runtime.distributed import current
from remembering.runtime.progress import Progress
from remembering.runtime.seeding import generator, permutation
from remembering.state import ModelState, ReplayMemory, TaskRecord

KEPT_HELD_OUT = 8
"""One in this many replay images is held out from the statistics, to check a new adapter."""
FLIP_IMAGES = 1024
"""Images on which flips are tested; some of them if a task has more."""
FLIP_SIGNIFICANCE = 1e-3
"""Flips do not preserve labels if they cause this many more errors with less probability."""


def learn_classes(
    state: ModelState,
    backbone: Backbone,
    task: Task,
    encoded: EncodedTask,
    progress: Progress,
    checkpoint: Checkpoint | None,
) -> tuple[dict[str, Any], Expert]:
    """Assign a task to an adapter, and fit its classes on the features of that adapter.

    Args:
        state: The state before the task.
        backbone: The frozen backbone.
        task: Images and labels.
        encoded: The task after the frozen layers.
        progress: Reports progress.
        checkpoint: Where to keep the progress of the training.

    Returns:
        The fields of the state that change, and the expert of the task in its adapter's exact class
        statistics.
    """
    settings, distributed, number = state.settings, current(), state.next_number
    features = distributed.all_gather(encoded.features)
    joined, domain = place(state, features, task.targets)
    tokens = encoded.token_cache
    classifier = (
        GaussianClassifier(settings.classifier) if joined is None else state.classifiers[joined]
    )
    # The same images are held out if a task is forgotten and learned again: an adapter that was
    # trained on the task, and that others share, must not be calibrated on its training images.
    rng = generator(settings.seed, "classifier")
    calibration = classifier.choose_calibration(task.targets, rng)
    if joined is None:
        adapter_number = number
        adapter, uses_flip = new_adapter(
            settings, task, tokens, calibration, number, progress, checkpoint
        )
        adapters = state.adapters.with_adapter(number, adapter)
    else:
        adapter_number = joined
        uses_flip, adapters = classifier.uses_flip, state.adapters
        adapter = adapters[joined]
    layers = settings.classifier.layers
    views = [tokens, _flipped(tokens)] if uses_flip else [tokens]
    with progress.track(f"fitting {task.name}", len(views) * len(task)) as step:
        samples = [deep_task_features(view, layers, adapter, step, distributed) for view in views]

    def fitted(old: GaussianClassifier, samples: list[Tensor]) -> tuple[GaussianClassifier, Expert]:
        expert = old.fit(
            samples[0],
            task.targets,
            rng,
            distributed,
            flipped=samples[1] if uses_flip else None,
            held_out=calibration,
        )
        on_device = {key: value.to(backbone.device) for key, value in expert.items()}
        return old.with_expert(number, on_device), expert

    classes, expert = fitted(classifier, samples)
    references = dict(state.references)
    if reference := references.get(adapter_number):
        exact = [
            deep_task_features(view, layers, reference.adapter, None, distributed) for view in views
        ]
        exact_classes, expert = fitted(reference.classifier, exact)
        references[adapter_number] = replace(reference, classifier=exact_classes)
    memories = dict(state.memories)
    if size := settings.replay_images:
        order = permutation(len(calibration), settings.seed, "kept")
        checks = calibration[order[: size // KEPT_HELD_OUT]]
        rest = size - len(checks)
        # At random: images near the class means, as herding selects, make consolidation worse.
        chosen = draw(task.targets, rest, calibration, generator(settings.seed, "replay"))
        chosen = torch.cat([chosen, checks])
        labels = tuple(task.labels[i] for i in chosen.tolist())
        images = kept_images(backbone, task.images, chosen)
        memories[number] = ReplayMemory(images, labels, held_out=len(checks))
    record = TaskRecord(number, task.name, task.classes, len(task), adapter_number)
    parts = {
        "tasks": (*state.tasks, record),
        "adapters": adapters,
        "classifiers": {**state.classifiers, adapter_number: classes},
        "domains": {**state.domains, adapter_number: domain},
        "references": references,
        "memories": memories,
    }
    return parts, expert


def place(state: ModelState, features: Tensor, targets: Tensor) -> tuple[int | None, Domain]:
    """Decide which adapter a task joins.

    Returns:
        The adapter number, or None if the task needs a new adapter, and the domain of the adapter
        including the task.
    """
    settings, features = state.settings, features.cpu()
    domains = state.domains
    novelties = {n: domain.novelties(features, targets) for n, domain in domains.items()}
    nearest = min(novelties, key=lambda n: domains[n].effect(novelties[n]), default=None)
    full = settings.capacity is not None and len(state.adapters) >= settings.capacity
    novel = all(domains[n].is_novel(found) for n, found in novelties.items())
    new = {"task": True, "first": nearest is None, "novelty": novel}[settings.adapters]
    if nearest is None or (new and not full):
        return None, Domain.of(features, targets)
    return nearest, domains[nearest].joined(features, novelties[nearest])


def new_adapter(
    settings: Settings,
    task: Task,
    tokens: TokenCache,
    calibration: Tensor,
    number: int,
    progress: Progress,
    checkpoint: Checkpoint | None = None,
) -> tuple[Adapter, bool]:
    """Train an adapter on a task, without its calibration images; its head is discarded.

    Args:
        settings: How to train, with everything explicit.
        task: Images and labels.
        tokens: The task after the frozen layers.
        calibration: Positions of the calibration images.
        number: Number of the task.
        progress: Reports progress.
        checkpoint: Where to keep the progress of the training.

    Returns:
        The adapter, and whether flips preserve labels.
    """
    backbone, distributed = tokens.backbone, current()
    uses_flip = flips_preserve_labels(settings, tokens, _flipped(tokens), task.targets)
    kept = torch.ones(len(task), dtype=torch.bool)
    kept[calibration] = False
    rows = kept.nonzero().flatten()
    rotates = uses_flip and settings.augment is None
    augment = settings.augment or ("crop" if uses_flip else "shift")
    epochs = settings.epochs_for(len(rows), rotates)
    settings = replace(settings, augment=augment, epochs=epochs)
    rng = generator(settings.seed, "task", number)
    adapter = Adapter.new(backbone, settings.rank, settings.first_layer, rng)
    outputs = len(task.classes) * (QUARTERS if rotates else 1)
    head = Head.linear(tuple(range(outputs)), backbone)
    token_cache = TokenCache(backbone, Subset(task.images, rows), settings.first_layer)
    if augment == "none":
        token_cache = token_cache.filled(distributed)
    targets = task.targets[rows]
    some = torch.arange(0, len(rows), max(1, len(rows) // 64))
    key = distributed.on_main(lambda: training_key(settings, number, [token_cache[some], targets]))
    kind = RotatedTrainingSet if rotates else TrainingSet
    training_set = kind(token_cache, targets, task.name, number, key)
    adapter, _ = train(
        backbone,
        adapter,
        head,
        training_set,
        settings,
        progress=progress,
        checkpoint=checkpoint,
        distributed=distributed,
    )
    return adapter, uses_flip


def flips_preserve_labels(
    settings: Settings, tokens: TokenCache, flipped: TokenCache, targets: Tensor
) -> bool:
    """Test on the frozen backbone whether flipped images are recognised as well as others.

    Class Gaussians are fitted to every second image. Flips preserve labels unless they cause
    significantly more errors on the other images.
    """
    layers, distributed = settings.classifier.layers, current()
    if len(targets) > FLIP_IMAGES:
        rows = permutation(len(targets), settings.seed, "flips")[:FLIP_IMAGES].sort().values
        tokens, flipped = (
            TokenCache(view.backbone, Subset(view.images, rows), view.first_layer)
            for view in (tokens, flipped)
        )
        targets = targets[rows]
    plain, flip = (
        distributed.all_gather(deep_task_features(view, layers, None, distributed=distributed))
        for view in (tokens, flipped)
    )
    rows = torch.arange(len(targets))
    fitted, tested = rows[::2], rows[1::2]
    if len(targets[fitted].unique()) < len(targets.unique()):
        return False
    classifier = GaussianClassifier(settings.classifier)
    expert = classifier.fit(plain[fitted], targets[fitted], torch.Generator())
    classifier = classifier.with_expert(0, expert)
    right, still = (
        classifier.class_logits(view[tested]).argmax(1).cpu() == targets[tested]
        for view in (plain, flip)
    )
    return not is_worse(right, still, FLIP_SIGNIFICANCE)


def _flipped(tokens: TokenCache) -> TokenCache:
    return TokenCache(tokens.backbone, FlippedImages(tokens.images), tokens.first_layer)
