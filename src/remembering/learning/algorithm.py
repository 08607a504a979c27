"""Algorithm 1 of the paper, step by step."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.encoding import EncodedTask, encode_task
from remembering.inference.token_cache import BATCH_SIZE, TokenCache
from remembering.learning.checkpoint import Checkpoint, training_key
from remembering.learning.fusion import fuse
from remembering.learning.replay import herd, kept_images
from remembering.learning.training import TrainingSet, train
from remembering.routing import Expert
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
    _check(state, task)
    settings, distributed, number = state.settings, current(), state.next_number
    feature_adapter = state.feature_adapter
    if state.needs_feature_adapter:
        feature_adapter = _train_feature_adapter(state, backbone, task, progress, checkpoint)

    cache_tokens = settings.augment == "none"  # augmented tokens differ in every epoch
    with progress.track(f"encoding {task.name}", len(task)) as step:
        encoded = encode_task(
            backbone,
            state.router,
            feature_adapter,
            settings.first_layer,
            task.images,
            step,
            cache_tokens,
            distributed,
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

    # Lines 6-8: the replay memory, herded in the latent space.
    memories = dict(state.memories)
    if settings.capacity is not None:
        memories[number] = _replay_memory(state, backbone, task, encoded, expert)
    expert = {key: value.to(backbone.device) for key, value in expert.items()}

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
    return replace(
        state,
        router=state.router.with_expert(number, expert),
        tasks=(*tasks, record),
        adapters=adapters.with_adapter(number, adapter),
        heads={**heads, number: head},
        memories=memories,
        feature_adapter=feature_adapter,
        next_number=number + 1,
    )


def _check(state: ModelState, task: Task) -> None:
    task.check_learnable()
    if any(record.name == task.name for record in state.tasks):
        raise RememberingError(
            f"a task named '{task.name}' is already learned; choose another name"
        )
    known = [label for record in state.tasks for label in record.classes]
    if known and type(known[0]) is not type(task.classes[0]):
        raise RememberingError(
            f"task '{task.name}' has {type(task.classes[0]).__name__} labels, but the model "
            f"has {type(known[0]).__name__} labels; use one type"
        )


def _train_feature_adapter(
    state: ModelState,
    backbone: Backbone,
    task: Task,
    progress: Progress,
    checkpoint: Checkpoint | None,
) -> Adapter:
    """Train an adapter to separate the classes of the first task; its head is discarded."""
    settings, distributed = state.settings, current()
    steps_per_epoch = math.ceil(len(task) / settings.batch_size)
    epochs = math.ceil(settings.router.feature_steps / steps_per_epoch)
    settings = replace(settings, epochs=epochs)
    rng = generator(settings.seed, "eyes")
    adapter = Adapter.new(backbone, settings.router.feature_rank, settings.first_layer, rng)
    head = Head.linear(task.classes, backbone)
    token_cache = TokenCache(backbone, task.images, settings.first_layer)
    if settings.augment == "none":
        token_cache = token_cache.filled(distributed)
    some = torch.arange(0, len(task), math.ceil(len(task) / BATCH_SIZE))
    number = state.next_number
    key = training_key(settings, number, [token_cache[some], task.targets])
    name = f"features of {task.name}"
    training_set = TrainingSet(token_cache, task.targets, name, number, key)
    checkpoint = checkpoint.part("features") if checkpoint else None
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
    return adapter


def _replay_memory(
    state: ModelState, backbone: Backbone, task: Task, encoded: EncodedTask, expert: Expert
) -> ReplayMemory:
    latents = state.router.encode(encoded.features, expert)
    chosen = herd(latents, task.targets, state.settings.memory, current())
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
    settings, distributed, number = state.settings, current(), state.next_number
    rng = generator(settings.seed, "task", number)
    adapter = Adapter.new(backbone, settings.rank, settings.first_layer, rng)
    head = state.new_head(task.classes, backbone)
    inputs = [encoded.features, task.targets]
    key = distributed.on_main(lambda: training_key(settings, number, inputs))
    targets = head.targets(task.labels)
    training_set = TrainingSet(encoded.token_cache, targets, task.name, number, key)
    return train(
        backbone,
        adapter,
        head,
        training_set,
        settings,
        progress=progress,
        checkpoint=checkpoint,
        distributed=distributed,
    )


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
    settings, distributed, number = state.settings, current(), state.next_number
    old_adapter, old_head = state.adapters[nearest.adapter], state.heads[nearest.adapter]
    served = state.served_by(nearest.adapter) if settings.fusion.replay == "all" else (nearest,)
    memories = [state.memories[record.number] for record in served]
    if settings.fusion.start == "copy":
        adapter, head = old_adapter, state.extended_head(old_head, task.classes, backbone)
    else:
        rng = generator(settings.seed, "task", number)
        adapter = Adapter.new(backbone, settings.rank, settings.first_layer, rng)
        head = state.new_head(tuple(dict.fromkeys([*old_head.classes, *task.classes])), backbone)
    past = [old_adapter.a, old_adapter.b, old_head.weight, *(m.images for m in memories)]
    inputs = [encoded.features, task.targets, *past]
    key = distributed.on_main(lambda: training_key(settings, number, inputs))
    targets = head.targets(task.labels)
    training_set = TrainingSet(encoded.token_cache, targets, task.name, number, key)
    return fuse(
        backbone,
        old_adapter,
        old_head,
        adapter,
        head,
        training_set,
        memories,
        settings,
        progress,
        checkpoint,
        distributed,
    )
