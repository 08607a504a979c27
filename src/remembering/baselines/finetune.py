"""Sequential fine-tuning of one adapter: the floor, which forgets."""

from __future__ import annotations

from remembering.baselines.base import SingleAdapter
from remembering.encoding import Prefix
from remembering.progress import SILENT, Progress
from remembering.tasks.task import Task
from remembering.training import Lesson, train


class FineTuning(SingleAdapter):
    """One adapter and one growing head go on training on each task in turn, nothing else done."""

    learned = 0
    """Tasks so far."""

    def learn(self, task: Task, progress: Progress = SILENT) -> None:
        task.check_learnable()
        prefix = Prefix(self.backbone, task.images, self.settings.first_layer).keep()
        head = self.head.extended(task.classes)
        name = f"{task.name} (fine-tuning)"
        lesson = Lesson(prefix, head.targets(task.labels), name, self.learned)
        self.adapter, self.head = train(
            self.backbone, self.adapter, head, lesson, self.settings, progress=progress
        )
        self.learned += 1
