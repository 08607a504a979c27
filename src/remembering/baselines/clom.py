"""CLOM: one model per task, trained to recognize inputs that do not belong to its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.lora import Adapter
from remembering.baselines.rotations import ALL_QUARTERS, RotatedImages
from remembering.baselines.taskwise import Taskwise
from remembering.data.images import ImageSequence
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.token_cache import TokenCache, batches
from remembering.learning.checkpoint import digest
from remembering.learning.training import Batch, TrainingSet, adapted
from remembering.runtime.progress import Progress
from remembering.runtime.seeding import generator


class CLOM(Taskwise):
    """Detect out-of-distribution inputs of each task by treating rotated images as extra classes.

    A task of C classes has 4 C outputs, one for each class and each rotation r by 0, 90, 180 and
    270 degrees. With y the class and rotation of an image, and z its feature of unit length,

        ℓ = ℓ_CE(y) + λ ℓ_con,
        ℓ_con = − mean_i mean_{j≠i: y_j=y_i} log [exp(z_i·z_j / τ) / Σ_{k≠i} exp(z_i·z_k / τ)],

    the supervised contrastive loss over a batch of images in all rotations. A test image is
    evaluated in all rotations, f_c = mean_r f_{c, r}(rotated by r), and the prediction is the
    largest calibrated logit over all classes of all tasks,

        argmax_{t, c} f_{t, c} − μ_t.

    Adaptation: each task has an adapter where the paper has a mask over one network (HAT); both
    prevent later tasks from changing it. The paper first trains features with ℓ_con, on augmented
    views and through a projection, and then the classifier; here both are trained together, and the
    images of a batch serve as each other's views. The paper fits a shift and a scale for each task
    on 20 stored images per class; here μ_t is the mean of max_c f_{t, c} over the task's training
    images, there is no scale, and no image is stored.

    Defaults: the four `turns` are the paper's and `temperature` (τ) is the authors'. `contrast` (λ)
    and the form of the calibration were tuned one at a time, not jointly, on held-out training
    images of scikit-learn's digits.
    """

    name = "clom"
    title = "CLOM"
    reference = (
        "Kim et al. (2022), Continual learning based on OOD detection and task masking, "
        "arXiv:2203.09450"
    )
    stores = "per task one adapter, one head with four outputs per class, and one calibration shift"
    defaults: ClassVar[Mapping[str, float]] = {"contrast": 1.0, "temperature": 0.07, "turns": 4}

    @property
    def turns(self) -> int:
        """Number of rotations of each image, including the upright one."""
        turns = int(self.options["turns"])
        if not 1 <= turns <= len(ALL_QUARTERS):
            raise RememberingError(f"CLOM has no {turns} rotations of an image; set turns to 1..4")
        return turns

    def new_adapter(self) -> Adapter:
        settings = self.settings
        rng = generator(settings.seed, "clom", self.learned)
        return Adapter.new(self.backbone, settings.rank, settings.first_layer, rng)

    def store_adapter(self, adapter: Adapter) -> None:
        self.tensors |= {f"{self.learned}.a": adapter.a, f"{self.learned}.b": adapter.b}

    def adapter(self, number: int) -> Adapter:
        a, b = self.tensors[f"{number}.a"], self.tensors[f"{number}.b"]
        return Adapter(a, b, self.settings.first_layer)

    def width(self, task: Task) -> int:
        return self.turns * len(task.classes)

    def training_set(self, task: Task) -> TrainingSet:
        self.rotated, self.count = self._rotated(task.images).filled(), len(task)
        return super().training_set(task)

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch with each image in all rotations."""
        features, targets = [batch.features], [batch.targets]
        for k in range(1, self.turns):
            tokens = self.rotated[batch.index + k * self.count]
            features.append(self.backbone.pool(adapted(self.backbone, batch.adapter, tokens)))
            targets.append(targets[-1] + len(batch.head.bias) // self.turns)
        z, y = torch.cat(features), torch.cat(targets)
        contrast = contrastive(z, y, self.options["temperature"])
        logits = F.linear(z, batch.head.weight, batch.head.bias)
        return F.cross_entropy(logits, y) + self.options["contrast"] * contrast

    def learn_task(self, task: Task, progress: Progress) -> None:
        super().learn_task(task, progress)
        largest = self._class_logits(task.images, [self.learned])[0].amax(1)
        self.tensors[f"{self.learned}.shift"] = largest.mean()

    def scores(self, images: ImageSequence) -> Tensor:
        prefix = f"{self.name} {self.options} {self.settings.first_layer}"
        models = [f"{prefix} {digest(self._model(number))}" for number in range(self.learned)]
        computed = self.made_once(models, images, lambda tasks: self._class_logits(images, tasks))
        result = torch.full((len(images), len(self.classes)), -torch.inf).to(self.backbone.device)
        for number, logits in enumerate(computed):
            columns = self.class_index(number)
            calibrated = logits - self.tensors[f"{number}.shift"]
            result[:, columns] = result[:, columns].maximum(calibrated)
        return result

    def _model(self, number: int) -> list[Tensor]:
        """Return the tensors that determine the logits of a task; later tasks keep them."""
        return [self.tensors[f"{number}.{part}"] for part in ("a", "b", "weight", "bias")]

    def _rotated(self, images: ImageSequence) -> TokenCache:
        """Return the tokens of all rotations of images, rotation by rotation."""
        rotated = RotatedImages(self.backbone, images, range(self.turns))
        return TokenCache(self.backbone, rotated, self.settings.first_layer)

    @torch.no_grad()
    def _class_logits(self, images: ImageSequence, numbers: Sequence[int]) -> list[Tensor]:
        """Return f for the classes of each of these tasks: (n, classes of the task)."""
        token_cache = self._rotated(images)
        result: list[list[Tensor]] = [[] for _ in numbers]
        for index in batches(len(images)):
            rotations = [token_cache[index + k * len(images)] for k in range(self.turns)]
            for number, parts in zip(numbers, result, strict=True):
                logits = torch.stack([self.task_logits(number, tokens) for tokens in rotations])
                # (rotation of the image, n, rotation of the output, class)
                logits = logits.unflatten(2, (self.turns, -1))
                parts.append(logits.diagonal(dim1=0, dim2=2).mean(2))
        return [torch.cat(parts) for parts in result]

    @property
    def trained(self) -> int:
        return super().trained + sum(self.adapter(t).parameters for t in range(self.learned))


def contrastive(features: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return the supervised contrastive loss of a batch.

    An image without another one of its class contributes 0.

    >>> features = torch.eye(2).repeat_interleave(2, dim=0)
    >>> near, far = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    >>> bool(contrastive(features, near, 0.1) < contrastive(features, far, 0.1))
    True
    """
    z = F.normalize(features)
    diagonal = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similarity = (z @ z.mT / temperature).masked_fill(diagonal, -torch.inf).log_softmax(1)
    positive = (targets[:, None] == targets) & ~diagonal
    losses = similarity.where(positive, 0).sum(1) / positive.sum(1).clamp_min(1)
    return -losses.mean()
