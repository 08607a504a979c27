"""The one training loop: an adapter and its head, on a task and perhaps on replayed images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters import Adapter
from remembering.backbone import Backbone
from remembering.config import Settings
from remembering.encoding import Prefix
from remembering.errors import RememberingError
from remembering.heads import Head
from remembering.progress import SILENT, Progress

ReplayLoss = Callable[[Adapter, Head], Tensor]
"""What a training step adds for the past; called once a step with the adapter under training."""


@dataclass(frozen=True)
class Lesson:
    """What is to be learned: tokens that enter the first adapted layer, and the outputs wanted."""

    prefix: Prefix
    targets: Tensor
    name: str

    def __len__(self) -> int:
        return len(self.targets)


def logits(backbone: Backbone, adapter: Adapter, head: Head, tokens: Tensor) -> Tensor:
    """f(v; {θ_ViT, θ_adapter}): the rest of the way, from the first adapted layer on."""
    last = backbone.run(tokens, start=adapter.first_layer, adapters=adapter.active())
    return head.logits(backbone, last)


def train(
    backbone: Backbone,
    adapter: Adapter,
    head: Head,
    lesson: Lesson,
    settings: Settings,
    rng: torch.Generator,
    replay: ReplayLoss | None = None,
    progress: Progress = SILENT,
) -> tuple[Adapter, Head]:
    """Minimise ℓ_CE, or α ℓ_CE + (1 − α) ℓ_replay, with AdamW; the arguments are left as they are.

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
    with progress.track(f"learning {lesson.name}", settings.epochs * len(lesson)) as step:
        for epoch in range(settings.epochs):
            for index in shuffled(len(lesson), settings.batch_size, rng):
                outputs = logits(backbone, adapter, head, lesson.prefix[index])
                targets = lesson.targets[index].to(outputs.device)
                loss = F.cross_entropy(outputs, targets)
                if replay is not None:
                    loss = settings.alpha * loss + (1 - settings.alpha) * replay(adapter, head)
                value = loss.item()
                if not math.isfinite(value):
                    raise RememberingError(
                        f"the loss of task '{lesson.name}' became {value} in epoch {epoch + 1}; "
                        f"nothing was changed; try a lower lr than {settings.lr}"
                    )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step(len(index), f"loss {value:.3f}")
    trained = head.with_tensors(head.weight.detach(), head.bias.detach()) if head.trained else head
    return adapter.frozen(), trained


def shuffled(count: int, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """One epoch of positions in random order."""
    return iter(torch.randperm(count, generator=rng).split(size))
