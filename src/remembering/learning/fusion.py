"""Distil a new adapter from a task and the old adapter it replaces (paper, section 3.4)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.adapters.lora import Adapter
from remembering.backbones.backbone import Backbone
from remembering.config import Settings
from remembering.data.images import joined
from remembering.inference.encoding import TokenCache, batches
from remembering.learning.checkpoint import Checkpoint
from remembering.learning.replay import Memory
from remembering.learning.training import TrainingSet, logits, shuffled, train
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.progress import SILENT, Progress


def fuse(
    backbone: Backbone,
    old_adapter: Adapter,
    old_head: Head,
    head: Head,
    training_set: TrainingSet,
    memories: Sequence[Memory],
    settings: Settings,
    progress: Progress = SILENT,
    checkpoint: Checkpoint | None = None,
    distributed: Distributed = SINGLE_PROCESS,
) -> tuple[Adapter, Head]:
    """Train a new adapter on its task while it imitates `old_adapter` on the replay memories.

    ℓ_L2 = Σ (f(v; θ_old) − f(v; θ_new))² on the soft probabilities of the replayed images, and
    the loss is α ℓ_CE + (1 − α) ℓ_L2. `head` knows the classes of both; to the classes that the
    old head did not know, the old adapter gives probability 0. The memories are those of every
    task that the old adapter serves: after an earlier fusion, that is more than one.

    Two things that the paper leaves open: the new adapter starts as a copy of the old one, where
    ℓ_L2 is least; and the sums over all samples are means over the two batches of a step, so that
    α weighs the same whatever the sizes of the task and the memory.
    """
    images = joined([memory.images for memory in memories])
    replayed = TokenCache(backbone, images, old_adapter.first_layer).keep(distributed)
    wanted = _soft_targets(backbone, old_adapter, old_head, head, replayed)
    replay = _Imitation(backbone, replayed, wanted, settings, training_set.number)
    return train(
        backbone,
        old_adapter,
        head,
        training_set,
        settings,
        replay,
        progress,
        checkpoint,
        distributed=distributed,
    )


class _Imitation:
    """ℓ_L2 on the replay memories, a batch a step, in an order of its own."""

    def __init__(
        self,
        backbone: Backbone,
        replayed: TokenCache,
        wanted: Tensor,
        settings: Settings,
        number: int,
    ):
        self.backbone = backbone
        self.replayed = replayed
        self.wanted = wanted
        self._pass = functools.lru_cache(maxsize=1)(
            lambda i: shuffled(len(wanted), settings, number, i, what="replay")
        )
        self._per_pass = math.ceil(len(wanted) / settings.batch_size)

    def batch(self, step: int) -> Tensor:
        return self._pass(step // self._per_pass)[step % self._per_pass]

    def loss(self, adapter: Adapter, head: Head, index: Tensor) -> Tensor:
        soft = logits(self.backbone, adapter, head, self.replayed[index]).softmax(1)
        return (soft - self.wanted[index]).square().sum(1).mean()


@torch.no_grad()
def _soft_targets(
    backbone: Backbone, old_adapter: Adapter, old_head: Head, head: Head, replayed: TokenCache
) -> Tensor:
    """The old adapter's probabilities, in the columns of the new head."""
    soft = torch.cat(
        [
            logits(backbone, old_adapter, old_head, replayed[index]).softmax(1)
            for index in batches(len(replayed.images))
        ]
    )
    if not head.trained:  # the same frozen outputs
        return soft
    wanted = soft.new_zeros(len(soft), len(head.weight))
    wanted[:, head.targets(old_head.classes).to(wanted.device)] = soft
    return wanted
