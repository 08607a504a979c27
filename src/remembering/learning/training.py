"""The one training loop: an adapter and its head, on a task and perhaps on replayed images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.config import Settings
from remembering.data.augmentation import augmented
from remembering.errors import RememberingError
from remembering.inference.encoding import TokenCache
from remembering.learning.checkpoint import Checkpoint
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.seeding import permutation


class Replay(Protocol):
    """What each step adds for the past."""

    def batch(self, step: int) -> Tensor:
        """Positions of what is replayed in a step."""

    def loss(self, adapter: Adapter, head: Head, index: Tensor) -> Tensor:
        """The mean loss over some of them, given the adapter and head under training."""


@dataclass(frozen=True)
class TrainingSet:
    """What is to be learned: tokens that enter the first adapted layer, and the outputs wanted."""

    token_cache: TokenCache
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
            return self.token_cache[index]
        images = self.token_cache.images[index]
        images = augmented(images, settings.augment, index, settings.seed, self.number, epoch)
        return self.token_cache.compute(images)


@dataclass(frozen=True)
class Batch:
    """One step: what goes in, and what the adapter and head under training make of it."""

    adapter: Adapter
    head: Head
    index: Tensor
    """Positions in the training_set."""
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


class Callback:
    """What a method changes in a step of training. As it stands, nothing: plain cross entropy."""

    def loss(self, batch: Batch) -> Tensor:
        """What is minimised."""
        return F.cross_entropy(batch.outputs, batch.targets)

    def on_backward_end(self, adapter: Adapter, head: Head) -> None:
        """After the backward pass: gradients may be read, and changed in place."""

    def on_step_end(self, adapter: Adapter, head: Head) -> None:
        """After the optimiser's step."""


NO_CALLBACK = Callback()


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
    training_set: TrainingSet,
    settings: Settings,
    replay: Replay | None = None,
    progress: Progress = SILENT,
    checkpoint: Checkpoint | None = None,
    callback: Callback = NO_CALLBACK,
    distributed: Distributed = SINGLE_PROCESS,
) -> tuple[Adapter, Head]:
    """Minimise ℓ_CE, or α ℓ_CE + (1 − α) ℓ_replay, with AdamW; the arguments are left as they are.

    `callback` may put another loss in the place of ℓ_CE, and look at or change each step. With an
    `distributed` of several processes each computes its share of every batch, and all take the step that
    one would take alone; a loss of `callback` must then be a mean over the images of a batch.

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
    per_epoch = math.ceil(len(training_set) / settings.batch_size)
    done = checkpoint.read(training_set.key, parameters, optimizer) if checkpoint else 0
    distributed.agree(done, "step to go on from")
    weight = settings.alpha if replay else 1.0
    with progress.track(
        f"learning {training_set.name}", settings.epochs * len(training_set)
    ) as step:
        for epoch in range(done // per_epoch, settings.epochs):
            batches = shuffled(len(training_set), settings, training_set.number, epoch)
            for i, index in enumerate(batches, start=epoch * per_epoch):
                if i < done:
                    continue
                optimizer.zero_grad()
                loss = torch.zeros((), device=backbone.device)
                for part in distributed.split(index):
                    with distributed.autocast():
                        tokens = training_set.tokens(part, settings, epoch)
                        batch = _batch(backbone, adapter, head, training_set, part, tokens, i)
                        share = weight * len(part) / len(index) * callback.loss(batch)
                    distributed.backward(share)
                    loss += share.detach()
                if replay:
                    replayed = replay.batch(i)
                    for part in distributed.split(replayed):
                        with distributed.autocast():
                            past = replay.loss(adapter, head, part)
                            share = (1 - weight) * len(part) / len(replayed) * past
                        distributed.backward(share)
                        loss += share.detach()
                value = distributed.reduce_gradients(parameters, loss).item()
                if not math.isfinite(value):
                    raise RememberingError(
                        f"the loss of task '{training_set.name}' became {value} in epoch {epoch + 1}; "
                        f"nothing was changed; try a lower lr than {settings.lr}"
                    )
                callback.on_backward_end(adapter, head)
                distributed.step(optimizer)
                callback.on_step_end(adapter, head)
                step(len(index), f"loss {value:.3f}")
                progress.log({f"loss/{training_set.name}": value}, i)
                if checkpoint and distributed.main and checkpoint.due(i + 1, per_epoch):
                    checkpoint.write(training_set.key, i + 1, parameters, optimizer)
    distributed.broadcast(parameters)
    if not all(parameter.isfinite().all() for parameter in parameters):
        raise RememberingError(
            f"the adapter of task '{training_set.name}' diverged in the last step; nothing was changed; "
            f"try a lower lr than {settings.lr}"
        )
    trained = head.with_tensors(head.weight.detach(), head.bias.detach()) if head.trained else head
    return adapter.frozen(), trained


def _batch(
    backbone: Backbone,
    adapter: Adapter,
    head: Head,
    training_set: TrainingSet,
    index: Tensor,
    tokens: Tensor,
    step: int,
) -> Batch:
    """What the adapter and head under training make of some images of a training_set."""
    features = head.features(backbone, adapted(backbone, adapter, tokens))
    outputs = F.linear(features, head.weight, head.bias)
    targets = training_set.targets[index].to(outputs.device)
    return Batch(adapter, head, index, tokens, features, outputs, targets, step)


def shuffled(
    count: int, settings: Settings, number: int, epoch: int, what: str = "task"
) -> tuple[Tensor, ...]:
    """The batches of one epoch, in an order fixed by the seed, the task and the epoch."""
    order = permutation(count, settings.seed, what, number, epoch)
    batches: tuple[Tensor, ...] = order.split(settings.batch_size)
    return batches
