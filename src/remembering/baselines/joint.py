"""Joint training of one adapter on all tasks at once, an upper bound: three variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from remembering import schema
from remembering.baselines.base import footprint
from remembering.baselines.gaussian import label_scores, packed, unpacked
from remembering.baselines.single_adapter import SingleAdapter
from remembering.config import Augment, Settings
from remembering.data.images import ImageSequence, joined, subset
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.encoding import FlippedImages, deep_task_features
from remembering.inference.token_cache import TokenCache
from remembering.learner import Footprint
from remembering.learning.checkpoint import digest
from remembering.learning.replay import image_bytes, kept_images
from remembering.learning.training import TrainingSet, train
from remembering.routing.classifier import GaussianClassifier
from remembering.runtime.progress import SILENT, Progress
from remembering.runtime.seeding import generator

ADAPTER = ("adapter.a", "adapter.b")
TRAINED = (*ADAPTER, "head.weight", "head.bias")


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
        self.data: list[Task] = []
        self.stale = False
        self.progress = SILENT

    def learn_task(self, task: Task, progress: Progress) -> None:
        self.data.append(task)
        self.stale = True
        self.progress = progress

    def state_dict(self) -> dict[str, Tensor]:
        self.finalize()
        tensors = dict(self.tensors)
        for i, task in enumerate(self.data):
            tensors[f"data.{i}.images"] = kept_images(self.backbone, task.images)
            tensors[f"data.{i}.targets"] = self.targets(task.labels)
        return tensors

    def footprint(self) -> Footprint:
        """Compute the footprint of `state_dict` without decoding every image."""
        self.finalize()
        model = footprint(self.tensors, self.trained)
        pixels = sum(image_bytes(self.backbone, task.images) for task in self.data)
        count = sum(map(len, self.data))
        total = model.bytes + pixels + 8 * count
        return replace(model, bytes=total, replay_images=count, replay_bytes=pixels)

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = {k: v for k, v in tensors.items() if not k.startswith("data.")}
        for i in range(self.learned):
            targets = tensors[f"data.{i}.targets"].tolist()
            labels = [self.classes[target] for target in targets]
            self.data.append(Task(str(i), tensors[f"data.{i}.images"].cpu(), labels))

    def finalize(self) -> None:
        if self.stale:
            self.tensors = self.fitted()
            self.stale = False

    def fitted(self) -> dict[str, Tensor]:
        """Return the tensors after training on all data.

        With a cache, methods whose training is identical share it.
        """
        images = joined([task.images for task in self.data])
        targets = self.targets([label for task in self.data for label in task.labels])
        settings = replace(self.settings, epochs=self.epochs)

        def make(missing: Sequence[int]) -> list[Tensor]:
            self.start_anew()
            token_cache = TokenCache(self.backbone, images, settings.first_layer)
            if settings.augment == "none":
                token_cache = token_cache.filled()
            name = f"all tasks ({self.title})"
            training_set = TrainingSet(token_cache, targets, name, number=0)
            head = self.head.extended(self.classes)
            self.adapter, self.head = train(
                self.backbone, self.adapter, head, training_set, settings, None, self.progress
            )
            return [self.tensors[TRAINED[i]] for i in missing]

        key = f"joint {schema.write(settings)} {digest([targets])}"
        makers = [f"{key} {name}" for name in TRAINED]
        return dict(zip(TRAINED, self.made_once(makers, images, make), strict=True))

    @property
    def epochs(self) -> int:
        """Passes over all data."""
        tasks = len(self.data)
        return self.settings.epochs_for(sum(map(len, self.data)) // tasks) * tasks


AUGMENTATIONS: tuple[Augment, ...] = ("none", "shift", "crop")
"""Values of the option `augment`."""


class TunedJoint(Joint):
    """Joint training whose hyperparameters were selected on held-out training images.

    `rank`, `epochs` (over all data), `lr` and `augment` (0: none, 1: shifts, 2: shifts and flips)
    are options; everything else is as in the default model: AdamW, cosine schedule, batches of 32.
    scripts/choose_joint.py selects the values of each experiment; its records are in results/.
    """

    name = "joint-tuned"
    title = "joint training, tuned"
    reference = "Caruana (1997), Multitask learning"
    defaults: ClassVar[Mapping[str, float]] = {"rank": 8, "epochs": 12, "lr": 1e-3, "augment": 2}

    def set_up(self) -> None:
        options = self.options
        for option in ("rank", "epochs", "augment"):
            if options[option] != int(options[option]):
                raise RememberingError(
                    f"option {self.name}.{option} = {options[option]:g} must be a whole number"
                )
        if options["augment"] >= len(AUGMENTATIONS):
            raise RememberingError(
                f"option {self.name}.augment = {options['augment']:g} must be 0 (none), 1 (shifts) "
                "or 2 (shifts and flips)"
            )
        if options["epochs"] < 1:
            raise RememberingError(f"option {self.name}.epochs = 0 must be at least 1")
        self.settings = Settings(
            rank=int(options["rank"]),
            epochs=int(options["epochs"]),
            lr=options["lr"],
            augment=AUGMENTATIONS[int(options["augment"])],
            first_layer=self.settings.first_layer,
            seed=self.settings.seed,
        ).resolved(self.backbone.depth)
        super().set_up()

    @property
    def epochs(self) -> int:
        return int(self.options["epochs"])


class GaussianJoint(TunedJoint):
    """The tuned joint training with the classifier of the default model in place of its head.

    The adapter of `TunedJoint`, then for each task class Gaussians on the features of several
    layers, with flipped images as further samples if they are part of the augmentation, and second
    views for small margins: what the default model does, with an adapter trained on all data.

    Adaptation: no images are held out from the training of the adapter, so the margins that decide
    on second views are those of training images.
    """

    name = "joint-gaussian"
    title = "joint training, tuned, Gaussians"
    stores = "one adapter, class means, one covariance matrix, and all training images"

    def fitted(self) -> dict[str, Tensor]:
        trained = super().fitted()
        self.tensors = {name: trained[name] for name in ADAPTER}
        classifier = GaussianClassifier(self.settings.classifier)
        for number, task in enumerate(self.data):
            rng = generator(self.settings.seed, "classifier")
            features, flipped = self._features(task.images), None
            if self.settings.augment == "crop":
                flipped = self._features(FlippedImages(task.images))
            expert = classifier.fit(features, task.targets, rng, flipped=flipped)
            classifier = classifier.with_expert(number, expert)
        return self.tensors | packed(classifier)

    @torch.no_grad()
    def scores(self, images: ImageSequence) -> Tensor:
        empty = GaussianClassifier(self.settings.classifier)
        kept = {k: v for k, v in self.tensors.items() if k not in ADAPTER}
        classifier = unpacked(empty, kept)

        def flipped(rows: Tensor) -> Tensor:
            return self._features(FlippedImages(subset(images, rows)))

        logits = classifier.logits_with_flips(self._features(images), flipped)
        columns = [c for task in self.data for c in self.targets(task.classes).tolist()]
        return label_scores(logits, columns, len(self.classes))

    def _features(self, images: ImageSequence) -> Tensor:
        token_cache = TokenCache(self.backbone, images, self.settings.first_layer)
        return deep_task_features(token_cache, self.settings.classifier.layers, self.adapter)

    @property
    def trained(self) -> int:
        return self.adapter.parameters
