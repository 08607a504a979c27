"""Adapter fusion: distil an old adapter into the adapter of a new task (paper, section 3.4)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.config import Settings
from remembering.data.images import joined
from remembering.inference.token_cache import TokenCache, batches
from remembering.learning.checkpoint import Checkpoint
from remembering.learning.training import TrainingSet, logits, shuffled, train
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.progress import SILENT, Progress
from remembering.state import ReplayMemory


def fuse(
    backbone: Backbone,
    old_adapter: Adapter,
    old_head: Head,
    adapter: Adapter,
    head: Head,
    training_set: TrainingSet,
    memories: Sequence[ReplayMemory],
    settings: Settings,
    progress: Progress = SILENT,
    checkpoint: Checkpoint | None = None,
    distributed: Distributed = SINGLE_PROCESS,
) -> tuple[Adapter, Head]:
    """Train a new adapter on its task while distilling `old_adapter` on the replay memories.

    ℓ_L2 = Σ (f(v; θ_old) − f(v; θ_new))² on the soft probabilities of the replayed images, and
    the loss is α ℓ_CE + (1 − α) ℓ_L2. For classes that the old head lacks, the targets of the
    distillation are 0.

    The sums over samples are means over the two batches of a step, so that α does not depend on
    the sizes of task and memory. With `settings.fusion.labels = "hard"`, as in the authors' script,
    the cross-entropy of the replayed labels takes the place of ℓ_L2.

    Args:
        backbone: The frozen backbone.
        old_adapter: The adapter that is absorbed.
        old_head: Its head.
        adapter: Where training starts: the old adapter, or a new one.
        head: Likewise, with the classes of both tasks.
        training_set: The new task.
        memories: Replay memories of tasks that the old adapter serves.
        settings: How to train.
        progress: Reports progress.
        checkpoint: Where to keep the progress of the training.
        distributed: The processes that train together.

    Returns:
        The new adapter and its head.
    """
    images = joined([memory.images for memory in memories])
    replayed = TokenCache(backbone, images, old_adapter.first_layer).filled(distributed)
    if settings.fusion.labels == "hard":
        targets = head.targets([label for memory in memories for label in memory.labels])
        targets = targets.to(backbone.device)
    else:
        targets = _soft_targets(backbone, old_adapter, old_head, head, replayed)
    distillation = _Distillation(backbone, replayed, targets, settings, training_set.number)
    return train(
        backbone,
        adapter,
        head,
        training_set,
        settings,
        distillation,
        progress,
        checkpoint,
        distributed=distributed,
    )


class _Distillation:
    """The loss on the replay memories, one batch per step, in its own order.

    `targets` are probabilities (n, outputs) for ℓ_L2, or outputs (n,) for cross-entropy.
    """

    def __init__(
        self,
        backbone: Backbone,
        replayed: TokenCache,
        targets: Tensor,
        settings: Settings,
        number: int,
    ):
        self.backbone = backbone
        self.replayed = replayed
        self.targets = targets
        self._epoch = functools.lru_cache(maxsize=1)(
            lambda i: shuffled(len(targets), settings, number, i, purpose="replay")
        )
        self._steps_per_epoch = math.ceil(len(targets) / settings.batch_size)

    def batch(self, step: int) -> Tensor:
        return self._epoch(step // self._steps_per_epoch)[step % self._steps_per_epoch]

    def loss(self, adapter: Adapter, head: Head, index: Tensor) -> Tensor:
        outputs = logits(self.backbone, adapter, head, self.replayed[index])
        targets = self.targets[index]
        if targets.ndim == 1:
            return F.cross_entropy(outputs, targets)
        return (outputs.softmax(1) - targets).square().sum(1).mean()


@torch.no_grad()
def _soft_targets(
    backbone: Backbone, old_adapter: Adapter, old_head: Head, head: Head, replayed: TokenCache
) -> Tensor:
    """Return the old adapter's probabilities in the columns of the new head."""
    soft = torch.cat(
        [
            logits(backbone, old_adapter, old_head, replayed[index]).softmax(1)
            for index in batches(len(replayed.images))
        ]
    )
    if not head.trained:  # the same frozen outputs
        return soft
    targets = soft.new_zeros(len(soft), len(head.weight))
    targets[:, head.targets(old_head.classes).to(targets.device)] = soft
    return targets
