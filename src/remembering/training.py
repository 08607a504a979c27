"""The one training loop: an adapter and its head, on a task and perhaps on replayed images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters import Adapter
from remembering.augmentation import augmented
from remembering.backbone import Backbone
from remembering.checkpoint import Checkpoint
from remembering.config import Settings
from remembering.encoding import Prefix
from remembering.engine import ALONE, Engine
from remembering.errors import RememberingError
from remembering.heads import Head
from remembering.progress import SILENT, Progress
from remembering.seeding import permutation


class Replay(Protocol):
    """What each step adds for the past."""

    def batch(self, step: int) -> Tensor:
        """Positions of what is replayed in a step."""

    def loss(self, adapter: Adapter, head: Head, index: Tensor) -> Tensor:
        """The mean loss over some of them, given the adapter and head under training."""


@dataclass(frozen=True)
class Lesson:
    """What is to be learned: tokens that enter the first adapted layer, and the outputs wanted."""

    prefix: Prefix
    targets: Tensor
    name: str
    number: int
    """Of the task: with the seed it decides the order of the images."""
    key: str = ""
    """What stands for this training in a checkpoint."""

    def __len__(self) -> int:
        return len(self.targets)

    def tokens(self, index: Tensor, settings: Settings, epoch: int) -> Tensor:
        """What enters the first adapted layer in an epoch: of the images as they are, which may
        have been kept, or augmented, which cannot."""
        if settings.augment == "none":
            return self.prefix[index]
        images = self.prefix.images[index]
        images = augmented(images, settings.augment, index, settings.seed, self.number, epoch)
        return self.prefix.compute(images)


@dataclass(frozen=True)
class Batch:
    """One step: what goes in, and what the adapter and head under training make of it."""

    adapter: Adapter
    head: Head
    index: Tensor
    """Positions in the lesson."""
    tokens: Tensor
    """What enters the first adapted layer."""
    features: Tensor
    """What the head reads: (n, dim)."""
    outputs: Tensor
    """What the head says: (n, outputs)."""
    targets: Tensor
    """The outputs wanted: (n,)."""
    step: int
    """Counted from 0 over all epochs."""


class Rules:
    """What a method changes in a step of training. As it stands, nothing: plain cross entropy."""

    def loss(self, batch: Batch) -> Tensor:
        """What is minimised."""
        return F.cross_entropy(batch.outputs, batch.targets)

    def gradients(self, adapter: Adapter, head: Head) -> None:
        """After the backward pass: gradients may be read, and changed in place."""

    def stepped(self, adapter: Adapter, head: Head) -> None:
        """After the optimiser's step."""


PLAIN = Rules()


def logits(backbone: Backbone, adapter: Adapter, head: Head, tokens: Tensor) -> Tensor:
    """f(v; {θ_ViT, θ_adapter}): the rest of the way, from the first adapted layer on."""
    return head.logits(backbone, adapted(backbone, adapter, tokens))


def adapted(backbone: Backbone, adapter: Adapter, tokens: Tensor) -> Tensor:
    """What heads read of the last state, with every sample under one adapter."""
    return backbone.finish(tokens, start=adapter.first_layer, adapters=adapter.active())


def train(
    backbone: Backbone,
    adapter: Adapter,
    head: Head,
    lesson: Lesson,
    settings: Settings,
    replay: Replay | None = None,
    progress: Progress = SILENT,
    checkpoint: Checkpoint | None = None,
    rules: Rules = PLAIN,
    engine: Engine = ALONE,
) -> tuple[Adapter, Head]:
    """Minimise ℓ_CE, or α ℓ_CE + (1 − α) ℓ_replay, with AdamW; the arguments are left as they are.

    `rules` may put another loss in the place of ℓ_CE, and look at or change each step. With an
    `engine` of several processes each computes its share of every batch, and all take the step that
    one would take alone; a loss of `rules` must then be a mean over the images of a batch.

    Raises:
        RememberingError: if the loss stops being a number.
    """
    adapter = adapter.trainable()
    parameters = [adapter.a, adapter.b]
    if head.trained:
        head = head.with_tensors(
            head.weight.detach().clone().requires_grad_(),
            head.bias.detach().clone().requires_grad_(),
        )
        parameters += [head.weight, head.bias]
    optimizer = torch.optim.AdamW(
        parameters, lr=settings.lr, betas=(0.9, 0.999), weight_decay=settings.weight_decay
    )
    per_epoch = math.ceil(len(lesson) / settings.batch_size)
    done = checkpoint.read(lesson.key, parameters, optimizer) if checkpoint else 0
    engine.agree(done, "step to go on from")
    weight = settings.alpha if replay else 1.0
    with progress.track(f"learning {lesson.name}", settings.epochs * len(lesson)) as step:
        for epoch in range(done // per_epoch, settings.epochs):
            batches = shuffled(len(lesson), settings, lesson.number, epoch)
            for i, index in enumerate(batches, start=epoch * per_epoch):
                if i < done:
                    continue
                optimizer.zero_grad()
                loss = torch.zeros((), device=backbone.device)
                for part in engine.split(index):
                    with engine.autocast():
                        tokens = lesson.tokens(part, settings, epoch)
                        batch = _batch(backbone, adapter, head, lesson, part, tokens, i)
                        share = weight * len(part) / len(index) * rules.loss(batch)
                    engine.backward(share)
                    loss += share.detach()
                if replay:
                    replayed = replay.batch(i)
                    for part in engine.split(replayed):
                        with engine.autocast():
                            past = replay.loss(adapter, head, part)
                            share = (1 - weight) * len(part) / len(replayed) * past
                        engine.backward(share)
                        loss += share.detach()
                value = engine.reduce_gradients(parameters, loss).item()
                if not math.isfinite(value):
                    raise RememberingError(
                        f"the loss of task '{lesson.name}' became {value} in epoch {epoch + 1}; "
                        f"nothing was changed; try a lower lr than {settings.lr}"
                    )
                rules.gradients(adapter, head)
                engine.step(optimizer)
                rules.stepped(adapter, head)
                step(len(index), f"loss {value:.3f}")
                progress.log({f"loss/{lesson.name}": value}, i)
                if checkpoint and engine.main and checkpoint.due(i + 1, per_epoch):
                    checkpoint.write(lesson.key, i + 1, parameters, optimizer)
    engine.align(parameters)
    if not all(parameter.isfinite().all() for parameter in parameters):
        raise RememberingError(
            f"the adapter of task '{lesson.name}' diverged in the last step; nothing was changed; "
            f"try a lower lr than {settings.lr}"
        )
    trained = head.with_tensors(head.weight.detach(), head.bias.detach()) if head.trained else head
    return adapter.frozen(), trained


def _batch(
    backbone: Backbone,
    adapter: Adapter,
    head: Head,
    lesson: Lesson,
    index: Tensor,
    tokens: Tensor,
    step: int,
) -> Batch:
    """What the adapter and head under training make of some images of a lesson."""
    features = head.features(backbone, adapted(backbone, adapter, tokens))
    outputs = F.linear(features, head.weight, head.bias)
    targets = lesson.targets[index].to(outputs.device)
    return Batch(adapter, head, index, tokens, features, outputs, targets, step)


def shuffled(
    count: int, settings: Settings, number: int, epoch: int, what: str = "task"
) -> tuple[Tensor, ...]:
    """The batches of one epoch, in an order fixed by the seed, the task and the epoch."""
    order = permutation(count, settings.seed, what, number, epoch)
    batches: tuple[Tensor, ...] = order.split(settings.batch_size)
    return batches
