"""Joint training of one adapter on everything at once: the ceiling, the paper's IID oracle."""

from __future__ import annotations

from remembering.backbone import Backbone
from remembering.baselines.base import SingleAdapter
from remembering.config import Settings
from remembering.encoding import Prefix
from remembering.evaluation.footprint import Footprint
from remembering.images import ImageSequence, joined
from remembering.progress import SILENT, Progress
from remembering.tasks.task import Label, Task
from remembering.training import Lesson, train


class Joint(SingleAdapter):
    """Keeps all data; one adapter of the same rank sees each image for the same number of epochs.

    It is trained when it is asked, on all tasks given until then.
    """

    every_task = False

    def __init__(self, backbone: Backbone, settings: Settings):
        super().__init__(backbone, settings)
        self.tasks: list[Task] = []
        self.stale = False
        self.progress = SILENT

    def learn(self, task: Task, progress: Progress = SILENT) -> None:
        task.check_learnable()
        self.tasks.append(task)
        self.stale = True
        self.progress = progress

    def predict(self, images: ImageSequence) -> list[Label]:
        if self.stale:
            self._train()
        return super().predict(images)

    def footprint(self) -> Footprint:
        if self.stale:
            self._train()
        return super().footprint()

    def _train(self) -> None:
        self.start_anew()
        images = joined([task.images for task in self.tasks])
        labels = [label for task in self.tasks for label in task.labels]
        prefix = Prefix(self.backbone, images, self.settings.first_layer).keep()
        head = self.head.extended(list(dict.fromkeys(labels)))
        lesson = Lesson(prefix, head.targets(labels), "everything (joint training)", number=0)
        self.adapter, self.head = train(
            self.backbone, self.adapter, head, lesson, self.settings, progress=self.progress
        )
        self.stale = False
