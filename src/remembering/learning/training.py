"""The training loop: an adapter and its head, on a task and optionally on replayed images."""

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
from remembering.data.augmentation import QUARTERS, augmented, rotated
from remembering.errors import RememberingError
from remembering.inference.token_cache import TokenCache
from remembering.learning.checkpoint import Checkpoint
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.seeding import permutation


class Replay(Protocol):
    """An additional loss on replayed images, one batch per step."""

    def batch(self, step: int) -> Tensor:
        """Return the positions that are replayed in a step."""

    def loss(self, adapter: Adapter, head: Head, index: Tensor) -> Tensor:
        """Return the mean loss over these positions, for the adapter and head in training."""


@dataclass(frozen=True)
class TrainingSet:
    """Inputs and targets of a training run.

    Attributes:
        token_cache: Tokens that enter the first adapted layer.
        targets: Index of the correct output for each image.
        name: Shown with the progress.
        number: Task number; with the seed it determines the order of the images.
        key: Hash that identifies this training run; checked when resuming.
    """

    token_cache: TokenCache
    targets: Tensor
    name: str
    number: int
    key: str = ""

    def __len__(self) -> int:
        return len(self.targets)

    def tokens(self, index: Tensor, settings: Settings, epoch: int) -> Tensor:
        """Return the tokens of images in an epoch: cached, or those of augmented images."""
        augment = settings.augment or "none"
        if augment == "none":
            return self.token_cache[index]
        images = self.token_cache.images[index]
        images = augmented(images, augment, index, settings.seed, self.number, epoch)
        return self.token_cache.compute(images)

    def outputs(self, index: Tensor, settings: Settings, epoch: int) -> Tensor:
        """Return the index of the correct output for images in an epoch."""
        return self.targets[index]


@dataclass(frozen=True)
class RotatedTrainingSet(TrainingSet):
    """A training set in which the orientations of a class are classes of their own.

    In every epoch an image is rotated by another quarter turn; the head has four outputs per class.
    Telling orientations apart requires features that are not specific to the classes (Lee et al.,
    2020, arXiv:1910.05872).
    """

    def tokens(self, index: Tensor, settings: Settings, epoch: int) -> Tensor:
        images, backbone = self.token_cache.images[index], self.token_cache.backbone
        images = augmented(
            images, settings.augment or "none", index, settings.seed, self.number, epoch
        )
        quarters = self._quarters(index, settings, epoch)
        return self.token_cache.compute(rotated(backbone.shrink(images), quarters))

    def outputs(self, index: Tensor, settings: Settings, epoch: int) -> Tensor:
        return QUARTERS * self.targets[index] + self._quarters(index, settings, epoch)

    def _quarters(self, index: Tensor, settings: Settings, epoch: int) -> Tensor:
        order = permutation(len(self), settings.seed, "rotations", self.number)
        return (order[index] + epoch) % QUARTERS


@dataclass(frozen=True)
class Batch:
    """One training step, as callbacks see it.

    Attributes:
        adapter: The adapter in training.
        head: The head in training.
        index: Positions in the training set.
        tokens: Tokens that enter the first adapted layer.
        features: Input of the head, (n, dim).
        outputs: Output of the head, (n, outputs).
        targets: Index of the correct output, (n,).
        step: Step number, counted from 0 over all epochs.
    """

    adapter: Adapter
    head: Head
    index: Tensor
    tokens: Tensor
    features: Tensor
    outputs: Tensor
    targets: Tensor
    step: int


class Callback:
    """Hooks by which a method changes a training step. The defaults are plain cross-entropy."""

    def forward(self, backbone: Backbone, adapter: Adapter, head: Head, tokens: Tensor) -> Tensor:
        """Run the adapted layers, and return the input of the head."""
        return head.features(backbone, adapted(backbone, adapter, tokens))

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss to minimise."""
        return F.cross_entropy(batch.outputs, batch.targets)

    def on_backward_end(self, adapter: Adapter, head: Head) -> None:
        """Called after the backward pass; may read gradients or change them in place."""

    def on_step_end(self, adapter: Adapter, head: Head) -> None:
        """Called after the optimiser step."""


NO_CALLBACK = Callback()


def logits(backbone: Backbone, adapter: Adapter, head: Head, tokens: Tensor) -> Tensor:
    """Return f(v; {θ_ViT, θ_adapter}) for tokens that enter the first adapted layer."""
    return head.logits(backbone, adapted(backbone, adapter, tokens))


def adapted(backbone: Backbone, adapter: Adapter, tokens: Tensor) -> Tensor:
    """Return the part of the last state that heads read, with all samples under one adapter."""
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
    """Minimise ℓ_CE, or α ℓ_CE + (1 − α) ℓ_replay, with AdamW.

    With several processes each computes its share of every batch, and all take the step that a
    single process would take; the loss of a callback must then be a mean over the batch.

    Args:
        backbone: The frozen backbone.
        adapter: Initial adapter; not modified.
        head: Initial head; not modified.
        training_set: Inputs and targets.
        settings: How to train.
        replay: Additional loss on replayed images.
        progress: Reports progress.
        checkpoint: Where to keep the progress, and whether to resume from it.
        callback: Replaces the loss, or observes and changes each step.
        distributed: The processes that train together.

    Returns:
        The trained adapter and head.

    Raises:
        RememberingError: If the loss or a parameter stops being finite.
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
    epochs = settings.epochs_for(len(training_set))
    done = checkpoint.read(training_set.key, parameters, optimizer) if checkpoint else 0
    distributed.agree(done, "step to resume from")
    weight = settings.alpha if replay else 1.0
    complete, steps = divmod(done, per_epoch)
    left = (epochs - complete) * len(training_set) - steps * settings.batch_size
    with progress.track(f"learning {training_set.name}", max(0, left)) as step:
        for epoch in range(done // per_epoch, epochs):
            batches = shuffled(len(training_set), settings, training_set.number, epoch)
            for i, index in enumerate(batches, start=epoch * per_epoch):
                if i < done:
                    continue
                _set_lr(optimizer, settings, i / (epochs * per_epoch))
                optimizer.zero_grad()
                loss = torch.zeros((), device=backbone.device)
                for part in distributed.split(index):
                    with distributed.autocast():
                        tokens = training_set.tokens(part, settings, epoch)
                        features = callback.forward(backbone, adapter, head, tokens)
                        targets = training_set.outputs(part, settings, epoch)
                        batch = _batch(adapter, head, part, tokens, features, targets, i)
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
                        f"the loss of '{training_set.name}' became {value} in epoch {epoch + 1}; "
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
            f"the adapter of '{training_set.name}' diverged in the last step; nothing was changed; "
            f"try a lower lr than {settings.lr}"
        )
    trained = head.with_tensors(head.weight.detach(), head.bias.detach()) if head.trained else head
    return adapter.frozen(), trained


def _set_lr(optimizer: torch.optim.Optimizer, settings: Settings, done: float) -> None:
    """Set the learning rate after a share of the training."""
    factor = 0.5 * (1 + math.cos(math.pi * done)) if settings.schedule == "cosine" else 1.0
    for group in optimizer.param_groups:
        group["lr"] = settings.lr * factor


def _batch(
    adapter: Adapter,
    head: Head,
    index: Tensor,
    tokens: Tensor,
    features: Tensor,
    targets: Tensor,
    step: int,
) -> Batch:
    outputs = F.linear(features, head.weight, head.bias)
    targets = targets.to(outputs.device)
    return Batch(adapter, head, index, tokens, features, outputs, targets, step)


def shuffled(
    count: int, settings: Settings, number: int, epoch: int, purpose: str = "task"
) -> tuple[Tensor, ...]:
    """Return the batches of one epoch, in an order fixed by seed, task and epoch."""
    order = permutation(count, settings.seed, purpose, number, epoch)
    batches: tuple[Tensor, ...] = order.split(settings.batch_size)
    return batches
