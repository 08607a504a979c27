"""Algorithm 1 of the paper, step by step.

`learn` reads a model and a task and returns everything that the task adds; it changes nothing
itself. The model takes it over in one go, so a task that fails half-way leaves no trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.data.task import Label, Task
from remembering.errors import RememberingError
from remembering.inference.encoding import BATCH, TokenCache, encode_task
from remembering.learning.checkpoint import Checkpoint, training_key
from remembering.learning.fusion import fuse
from remembering.learning.replay import Memory, herd, kept_images
from remembering.learning.training import TrainingSet, train
from remembering.routing import Expert
from remembering.runtime.distributed import current
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.seeding import generator

if TYPE_CHECKING:
    from remembering.model import RememberingTransformer


@dataclass(frozen=True)
class Learned:
    """What one task adds to a model."""

    expert: Expert
    adapter: Adapter
    head: Head
    memory: Memory | None
    absorbed: int | None
    """The old adapter that the new one replaces, if the capacity was reached."""
    feature_adapter: Adapter | None
    """The adapter through which the router sees, from the first task on."""


def learn(
    model: RememberingTransformer,
    task: Task,
    progress: Progress = SILENT,
    checkpoint: Checkpoint | None = None,
) -> Learned:
    """Learn one task (Algorithm 1, the body of its loop)."""
    task.check_learnable()
    settings, backbone, router = model.settings, model.backbone, model.router
    distributed, number = current(), model.next_number
    rng = generator(settings.seed, "task", number)

    # Before the router's features are fixed, the backbone is adapted to the images once.
    feature_adapter = model.feature_adapter
    if feature_adapter is None and model.needs_feature_adapter:
        feature_adapter = _train_feature_adapter(model, task, progress, checkpoint)

    keep = settings.augment == "none"  # else no two epochs have the same tokens
    with progress.track(f"reading {task.name}", len(task)) as step:
        encoded = encode_task(
            backbone,
            router,
            feature_adapter,
            settings.first_layer,
            task.images,
            step,
            keep,
            distributed,
        )

    # Lines 2-5: a generative model of this task. All start from the same weights: what training
    # leaves undone is then alike for all, and cancels when their errors are compared.
    expert = router.fit(
        encoded.features, task.targets, generator(settings.seed, "router"), distributed
    )
    distributed.broadcast(list(expert.values()))
    if not all(value.isfinite().all() for value in expert.values()):
        raise RememberingError(
            f"the generative model of task '{task.name}' diverged; nothing was changed; try a "
            f"lower router.lr than {settings.router.lr}, or a lower lr than {settings.lr}"
        )

    # Lines 6-8: the replay memory, those nearest to their class centre in the latent space.
    memory = None
    if settings.capacity is not None:
        latents = router.encode(encoded.features, expert)
        chosen = herd(latents, task.targets, settings.memory, distributed)
        labels = tuple(task.labels[i] for i in chosen.tolist())
        memory = Memory(kept_images(backbone, task.images, chosen), labels)
    # Features that are many lie on the CPU, and so does what was made of them.
    expert = {key: value.to(backbone.device) for key, value in expert.items()}

    full = settings.capacity is not None and len(model.adapters) >= settings.capacity
    if not full:
        # Lines 21-23: a new adapter for this task alone.
        adapter = Adapter.new(backbone, settings.rank, settings.first_layer, rng)
        head = _new_head(model, task.classes)
        seen = [encoded.features, task.targets]
        key = distributed.on_main(lambda: training_key(settings, number, seen))
        training_set = TrainingSet(
            encoded.token_cache, head.targets(task.labels), task.name, number, key
        )
        adapter, head = train(
            backbone,
            adapter,
            head,
            training_set,
            settings,
            None,
            progress,
            checkpoint,
            distributed=distributed,
        )
        return Learned(expert, adapter, head, memory, None, feature_adapter)

    # Lines 9-12: the old task whose generative model knows this task best, and its adapter.
    scores = torch.stack([router.score(part).sum(0) for part in encoded.chunks()]).sum(0)
    nearest = int(distributed.all_reduce(scores).argmin())
    absorbed = model.tasks[nearest].adapter

    # Lines 14-18: learn the new task and distil the old adapter, for every task that it serves.
    served = [record for record in model.tasks if record.adapter == absorbed]
    old_adapter, old_head = model.adapters[absorbed], model.heads[absorbed]
    memories = [model.memories[record.number] for record in served]
    head = _extended_head(model, old_head, task.classes)
    past = [old_adapter.a, old_adapter.b, old_head.weight, *(m.images for m in memories)]
    seen = [encoded.features, task.targets, *past]
    key = distributed.on_main(lambda: training_key(settings, number, seen))
    training_set = TrainingSet(
        encoded.token_cache, head.targets(task.labels), task.name, number, key
    )
    adapter, head = fuse(
        backbone,
        old_adapter,
        old_head,
        head,
        training_set,
        memories,
        settings,
        progress,
        checkpoint,
        distributed,
    )
    # Line 19, Gate(e*) <- t, is the model's when it takes this over.
    return Learned(expert, adapter, head, memory, absorbed, feature_adapter)


def _train_feature_adapter(
    model: RememberingTransformer, task: Task, progress: Progress, checkpoint: Checkpoint | None
) -> Adapter:
    """An adapter that tells the first task's classes apart; its head is thrown away."""
    settings, backbone, distributed = model.settings, model.backbone, current()
    per_epoch = math.ceil(len(task) / settings.batch_size)
    settings = replace(settings, epochs=math.ceil(settings.router.feature_steps / per_epoch))
    rng = generator(settings.seed, "eyes")
    feature_adapter = Adapter.new(backbone, settings.router.feature_rank, settings.first_layer, rng)
    head = Head.linear(task.classes, backbone)
    token_cache = TokenCache(backbone, task.images, settings.first_layer)
    if settings.augment == "none":
        token_cache = token_cache.keep(distributed)
    some = torch.arange(0, len(task), math.ceil(len(task) / BATCH))
    key = training_key(settings, model.next_number, [token_cache[some], task.targets])
    training_set = TrainingSet(
        token_cache, task.targets, f"to see, from {task.name}", model.next_number, key
    )
    checkpoint = checkpoint.of("eyes") if checkpoint else None
    feature_adapter, _ = train(
        backbone,
        feature_adapter,
        head,
        training_set,
        settings,
        None,
        progress,
        checkpoint,
        distributed=distributed,
    )
    return feature_adapter


def _new_head(model: RememberingTransformer, classes: tuple[Label, ...]) -> Head:
    if model.settings.head == "linear":
        return Head.linear(classes, model.backbone)
    return Head.frozen(classes, model.frozen_columns(classes), model.backbone)


def _extended_head(model: RememberingTransformer, old: Head, classes: tuple[Label, ...]) -> Head:
    if old.trained:
        return old.extended(classes)
    both = tuple(dict.fromkeys([*old.classes, *classes]))
    return Head.frozen(both, model.frozen_columns(both), model.backbone)
