"""Algorithm 1 of the paper, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.encoding import EncodedTask, encode_task
from remembering.learning.checkpoint import Checkpoint, training_key
from remembering.learning.classes import learn_classes
from remembering.learning.consolidate import consolidate
from remembering.learning.fusion import fuse
from remembering.learning.replay import herd, kept_images
from remembering.learning.training import TrainingSet, train
from remembering.routing import Expert
from remembering.routing.gaussian import GaussianRouter
from remembering.routing.share import Share
from remembering.runtime.distributed import current
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.seeding import generator
from remembering.state import ModelState, ReplayMemory, TaskRecord


def learn(
    state: ModelState,
    backbone: Backbone,
    task: Task,
    progress: Progress = SILENT,
    checkpoint: Checkpoint | None = None,
) -> ModelState:
    """Learn one task: the body of the loop of Algorithm 1.

    Args:
        state: What was learned before.
        backbone: The frozen backbone.
        task: Images and labels.
        progress: Reports progress.
        checkpoint: Where to keep the progress of the training, and whether to resume from it.

    Returns:
        The state after the task; `state` is unchanged.

    Raises:
        RememberingError: If the task cannot be learned.
    """
    check_new(state, task)
    settings, distributed, number = state.settings, current(), state.next_number
    with progress.track(f"encoding {task.name}", len(task)) as step:
        encoded = encode_task(
            backbone,
            state.router,
            settings.first_layer,
            task.images,
            step,
            distributed=distributed,
        )

    # Lines 2-5: a generative model of this task. All of them start from the same weights, so that
    # what training leaves undone is alike for all and cancels when scores are compared.
    rng = generator(settings.seed, "router")
    expert = state.router.fit(encoded.features, task.targets, rng, distributed)
    distributed.broadcast(list(expert.values()))
    if not all(value.isfinite().all() for value in expert.values()):
        raise RememberingError(
            f"the generative model of task '{task.name}' diverged; nothing was changed; try a "
            f"lower router.lr than {settings.router.lr}, or a lower lr than {settings.lr}"
        )

    if settings.classifier.kind == "gaussian":
        parts, classes = learn_classes(state, backbone, task, encoded, progress, checkpoint)
    else:
        parts = _learn_adapter(state, backbone, task, encoded, expert, progress, checkpoint)
        classes = None
    shares = dict(state.shares)
    routed = expert if isinstance(state.router, GaussianRouter) else None
    if settings.exact_forgetting and (routed or classes):
        shares[number] = Share.of(router=routed, classifier=classes)
    expert = {key: value.to(backbone.device) for key, value in expert.items()}
    learned = replace(
        state,
        router=state.router.with_expert(number, expert),
        shares=shares,
        next_number=number + 1,
        **parts,
    )
    adapter, every = learned.tasks[-1].adapter, settings.consolidate_every
    served = len(learned.served_by(adapter))
    if every and served > 1 and served % every == 0:
        learned, _ = consolidate(learned, backbone, adapter, progress, checkpoint)
    return learned


def _learn_adapter(
    state: ModelState,
    backbone: Backbone,
    task: Task,
    encoded: EncodedTask,
    expert: Expert,
    progress: Progress,
    checkpoint: Checkpoint | None,
) -> dict[str, Any]:
    """Train the adapter of a task (lines 6-23), and return the fields of the state that change."""
    settings, number = state.settings, state.next_number
    # Lines 6-8: the replay memory, herded in the latent space.
    memories = dict(state.memories)
    if settings.capacity is not None:
        memories[number] = _replay_memory(state, backbone, task, encoded, expert)
    if settings.capacity is None or len(state.adapters) < settings.capacity:
        # Lines 20-22: a new adapter for this task alone.
        absorbed = None
        adapter, head = _train_adapter(state, backbone, task, encoded, progress, checkpoint)
    else:
        # Lines 9-17: the new adapter absorbs that of the most similar old task.
        nearest = _most_similar_task(state, encoded)
        absorbed = nearest.adapter
        adapter, head = _fuse(state, backbone, task, encoded, nearest, progress, checkpoint)

    # Line 18: Gate(e) <- t for every task e that the absorbed adapter served.
    tasks = [
        replace(old, adapter=number) if old.adapter == absorbed else old for old in state.tasks
    ]
    record = TaskRecord(number, task.name, task.classes, len(task), number)
    adapters, heads = state.adapters, dict(state.heads)
    if absorbed is not None:
        adapters = adapters.without(absorbed)
        del heads[absorbed]
    return {
        "tasks": (*tasks, record),
        "adapters": adapters.with_adapter(number, adapter),
        "heads": {**heads, number: head},
        "memories": memories,
    }


def check_new(state: ModelState, task: Task) -> None:
    """Check that a task can be learned next: its classes, its name, and the type of its labels.

    Raises:
        RememberingError: If not.
    """
    task.check_learnable()
    if any(record.name == task.name for record in state.tasks):
        raise RememberingError(
            f"a task named '{task.name}' is already learned; choose another name, add the images "
            "to it (add_images, remember add), or forget it first"
        )
    known = [label for record in state.tasks for label in record.classes]
    if known and type(known[0]) is not type(task.classes[0]):
        raise RememberingError(
            f"task '{task.name}' has {type(task.classes[0]).__name__} labels, but the model "
            f"has {type(known[0]).__name__} labels; use one type"
        )


def _replay_memory(
    state: ModelState, backbone: Backbone, task: Task, encoded: EncodedTask, expert: Expert
) -> ReplayMemory:
    latents = state.router.encode(encoded.features, expert)
    chosen = herd(latents, task.targets, state.settings.replay_images, current())
    labels = tuple(task.labels[i] for i in chosen.tolist())
    return ReplayMemory(kept_images(backbone, task.images, chosen), labels)


def _train_adapter(
    state: ModelState,
    backbone: Backbone,
    task: Task,
    encoded: EncodedTask,
    progress: Progress,
    checkpoint: Checkpoint | None,
) -> tuple[Adapter, Head]:
    """Train a new adapter for a task."""
    settings = state.settings
    rng = generator(settings.seed, "task", state.next_number)
    adapter = Adapter.new(backbone, settings.rank, settings.first_layer, rng)
    head = state.new_head(task.classes, backbone)
    return train(
        backbone,
        adapter,
        head,
        _training_set(state, task, encoded, head),
        settings,
        progress=progress,
        checkpoint=checkpoint,
        distributed=current(),
    )


def _training_set(
    state: ModelState, task: Task, encoded: EncodedTask, head: Head, past: Sequence[Tensor] = ()
) -> TrainingSet:
    """Return the training set of a task; `past` is what its training depends on besides."""
    number, inputs = state.next_number, [encoded.features, task.targets, *past]
    key = current().on_main(lambda: training_key(state.settings, number, inputs))
    return TrainingSet(encoded.token_cache, head.targets(task.labels), task.name, number, key)


def _most_similar_task(state: ModelState, encoded: EncodedTask) -> TaskRecord:
    """Return the old task whose expert finds the new task most familiar."""
    sums = torch.stack([state.router.scores(part).sum(0) for part in encoded.chunks()]).sum(0)
    return state.tasks[int(current().all_reduce(sums).argmin())]


def _fuse(
    state: ModelState,
    backbone: Backbone,
    task: Task,
    encoded: EncodedTask,
    nearest: TaskRecord,
    progress: Progress,
    checkpoint: Checkpoint | None,
) -> tuple[Adapter, Head]:
    """Train a new adapter on the task while distilling that of the most similar task."""
    settings = state.settings
    old_adapter, old_head = state.adapters[nearest.adapter], state.heads[nearest.adapter]
    served = state.served_by(nearest.adapter) if settings.fusion.replay == "all" else (nearest,)
    missing = [record.name for record in served if record.number not in state.memories]
    if missing:
        raise RememberingError(
            f"the adapter of task '{missing[0]}' cannot be fused, because the task was learned "
            "without a capacity and has no replay images; remove the capacity, or learn the tasks "
            "again with it"
        )
    # Read once: they may be stored, and are needed for the key and for the training.
    memories = [state.memories[record.number] for record in served]
    memories = [replace(memory, source=memory.images) for memory in memories]
    if settings.fusion.start == "copy":
        adapter, head = old_adapter, state.extended_head(old_head, task.classes, backbone)
    else:
        rng = generator(settings.seed, "task", state.next_number)
        adapter = Adapter.new(backbone, settings.rank, settings.first_layer, rng)
        head = state.new_head(tuple(dict.fromkeys([*old_head.classes, *task.classes])), backbone)
    past = [old_adapter.a, old_adapter.b, old_head.weight, *(m.images for m in memories)]
    return fuse(
        backbone,
        old_adapter,
        old_head,
        adapter,
        head,
        _training_set(state, task, encoded, head, past),
        memories,
        settings,
        progress,
        checkpoint,
        current(),
    )
