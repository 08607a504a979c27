"""Joint training: the paper's IID oracle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from remembering.backbones.backbone import Backbone
from remembering.runtime.progress import Progress, Step

from .example import SETTINGS, STREAM, made


def test_joint_training_lasts_as_long_as_all_tasks_together(backbone: Backbone) -> None:
    """Each image is seen `epochs` times the number of tasks, in the paper 50 or 200 times."""
    seen: list[int] = []

    class Watch(Progress):
        @contextmanager
        def track(self, description: str, total: int) -> Iterator[Step]:
            yield lambda advance, note="": seen.append(advance)

    learner = made("joint", backbone)
    for data in STREAM:
        learner.learn(data.train, progress=Watch())
    learner.finalize()
    images = sum(len(data.train) for data in STREAM)
    assert len(STREAM) == 2
    assert sum(seen) == 2 * SETTINGS.epochs * images
