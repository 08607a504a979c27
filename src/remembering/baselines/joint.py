"""Joint training of one adapter on all tasks at once: the paper's IID oracle, an upper bound."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from remembering.baselines.base import footprint
from remembering.baselines.single_adapter import SingleAdapter
from remembering.data.images import ImageSequence, joined
from remembering.data.task import Label, Task
from remembering.inference.token_cache import TokenCache
from remembering.learner import Footprint
from remembering.learning.replay import image_bytes, kept_images
from remembering.learning.training import TrainingSet, train
from remembering.runtime.progress import SILENT, Progress


class Joint(SingleAdapter):
    """Store all data and train one adapter of the same rank for the total number of epochs.

    `settings.epochs` are the epochs per task; the paper's oracle passes over all data for as many
    epochs as all tasks have together, that is `settings.epochs` times the number of tasks.
    Training is deferred until the first prediction and uses all tasks learned by then:
    ℓ = cross entropy over all classes, on all images in one shuffled order.
    """

    name = "joint"
    title = "joint training"
    reference = "the paper's IID oracle; Caruana (1997), Multitask learning"
    stores = "one adapter, one head, and all training images"
    every_task = False

    def set_up(self) -> None:
        super().set_up()
        self.data: list[tuple[ImageSequence, tuple[Label, ...]]] = []
        self.stale = False
        self.progress = SILENT

    def learn_task(self, task: Task, progress: Progress) -> None:
        self.data.append((task.images, task.labels))
        self.stale = True
        self.progress = progress

    def state_dict(self) -> dict[str, Tensor]:
        self.finalize()
        tensors = dict(self.tensors)
        for i, (images, labels) in enumerate(self.data):
            tensors[f"data.{i}.images"] = kept_images(self.backbone, images)
            tensors[f"data.{i}.targets"] = self.targets(labels)
        return tensors

    def footprint(self) -> Footprint:
        """Compute the footprint of `state_dict` without decoding every image."""
        self.finalize()
        model = footprint(self.tensors, self.trained)
        pixels = sum(image_bytes(self.backbone, images) for images, _ in self.data)
        count = sum(len(labels) for _, labels in self.data)
        total = model.bytes + pixels + 8 * count
        return replace(model, bytes=total, replay_images=count, replay_bytes=pixels)

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = {k: v for k, v in tensors.items() if not k.startswith("data.")}
        for i in range(self.learned):
            targets = tensors[f"data.{i}.targets"].tolist()
            labels = tuple(self.classes[target] for target in targets)
            self.data.append((tensors[f"data.{i}.images"].cpu(), labels))

    def finalize(self) -> None:
        if not self.stale:
            return
        self.start_anew()
        images = joined([images for images, _ in self.data])
        labels = [label for _, part in self.data for label in part]
        token_cache = TokenCache(self.backbone, images, self.settings.first_layer).filled()
        head = self.head.extended(self.classes)
        name = "all tasks (joint training)"
        training_set = TrainingSet(token_cache, head.targets(labels), name, number=0)
        total = self.settings.epochs_for(len(labels) // len(self.data)) * len(self.data)
        settings = replace(self.settings, epochs=total)
        self.adapter, self.head = train(
            self.backbone, self.adapter, head, training_set, settings, None, self.progress
        )
        self.stale = False
