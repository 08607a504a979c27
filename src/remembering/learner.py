"""The protocol that the Remembering Transformer and every baseline implement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from remembering.runtime.progress import SILENT, Progress
from remembering.schema import Count

if TYPE_CHECKING:  # keeps `Footprint`, which results contain, free of torch
    from remembering.backbones.backbone import Backbone
    from remembering.data.images import ImagesLike
    from remembering.data.task import Label, Task


@dataclass(frozen=True)
class Footprint:
    """What a learner keeps besides the frozen backbone.

    Attributes:
        parameters: All floating-point numbers that are needed to answer and to learn further.
        bytes: All of it as stored, including counters and replay images: what is needed to answer
            and to learn further.
        trained: Parameters that gradient descent changes.
        replay_images: Number of stored training images.
        replay_bytes: Bytes of these images.
        adapters: Share of `parameters` in adapters, the paper's number: 4 · L · 2D · r for each.
            The shares are 0 for methods that do not consist of adapters, heads and routers.
        heads: Share of `parameters` in heads.
        routers: Share of `parameters` in generative models: router, class statistics, domains.
        forget_bytes: Bytes that only `forget` needs, besides `bytes`: each task's share of the
            shared statistics. They stay on disk once the model is saved.
    """

    parameters: Count
    bytes: Count
    trained: Count = 0
    replay_images: Count = 0
    replay_bytes: Count = 0
    adapters: Count = 0
    heads: Count = 0
    routers: Count = 0
    forget_bytes: Count = 0


def adapter_parameters(layers: int, dim: int, rank: int) -> int:
    """Return the parameters of one adapter on Q, K, V and O: the paper's memory footprint.

    >>> adapter_parameters(layers=12, dim=768, rank=1)  # ViT-B/16
    73728
    """
    return 4 * layers * 2 * dim * rank


class Answers(Protocol):
    """What `predict` returns."""

    @property
    def labels(self) -> Sequence[Label]:
        """The label of each image."""


class Learner(Protocol):
    """Learns one task after another and answers images without knowing their task.

    After an exception in `learn` the learner is as it was before. Each image is answered on its
    own: the answer does not depend on the other images.
    """

    @property
    def learned(self) -> int:
        """Number of tasks learned so far."""

    def learn(self, task: Task, *, progress: Progress = SILENT) -> object:
        """Learn the next task."""

    def predict(self, images: ImagesLike, /) -> Answers:
        """Answer images."""

    def footprint(self) -> Footprint:
        """Count what is kept besides the frozen backbone."""

    def save(self, path: Path, /) -> None:
        """Write everything that `load` needs, atomically."""

    @classmethod
    def load(cls, path: Path, /, *, backbone: Backbone) -> Self:
        """Read what `save` wrote; it answers and learns further with the same bits."""
