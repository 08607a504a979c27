"""CLOM: every task has a model of its own that also knows what is not its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.lora import Adapter
from remembering.baselines.rotations import TURNS, Rotated
from remembering.baselines.taskwise import Taskwise
from remembering.data.images import ImageSequence
from remembering.data.task import Task
from remembering.errors import RememberingError
from remembering.inference.token_cache import TokenCache, batches
from remembering.learning.training import Batch, TrainingSet, adapted
from remembering.runtime.progress import Progress
from remembering.runtime.seeding import generator


class CLOM(Taskwise):
    """Images turned by quarters are classes of their own: what the model has not seen as its own.

    A task of C classes has 4 C outputs, for each class and each turn r of 0, 90, 180 and 270
    degrees. With y the class and turn of an image, and z its feature, of length 1,

        ℓ = ℓ_CE(y) + λ ℓ_con,
        ℓ_con = − mean_i mean_{j≠i: y_j=y_i} log [exp(z_i·z_j / τ) / Σ_{k≠i} exp(z_i·z_k / τ)],

    the supervised contrastive loss over a batch of images, each in all turns. What is asked about
    is shown in all turns, f_c = mean_r f_{c, r}(turned by r), and answered with the greatest
    calibrated output over all classes of all tasks,

        argmax_{t, c} f_{t, c} − μ_t.

    Adapted: a task has an adapter where the paper has a mask over one network (HAT): both see to it
    that no later task changes it. The paper trains features with ℓ_con first, on augmented views
    and through a projection, and then the classifier; here both at once, and images of a batch are
    each other's views. The paper fits a shift and a scale for each task on 20 stored images a
    class; here μ_t is the mean of max_c f_{t, c} over the task's own images, there is no scale, and
    no image is stored.

    The four `turns` are the paper's, τ is the authors'. λ (`contrast`) and the form of the
    calibration were chosen one at a time, not together, on scikit-learn's digits, on training
    images that were held out.
    """

    name = "clom"
    title = "CLOM"
    reference = (
        "Kim et al. (2022), Continual learning based on OOD detection and task masking, "
        "arXiv:2203.09450"
    )
    published = "CLOM"
    stores = "one adapter, one head of four outputs a class, and one number a task"
    defaults: ClassVar[Mapping[str, float]] = {"contrast": 1.0, "temperature": 0.07, "turns": 4}

    @property
    def turns(self) -> int:
        """In how many ways an image is shown."""
        turns = int(self.options["turns"])
        if not 1 <= turns <= TURNS:
            raise RememberingError(f"CLOM shows images in 1 to {TURNS} turns, not in {turns}")
        return turns

    def new_adapter(self) -> Adapter:
        settings = self.settings
        rng = generator(settings.seed, "clom", self.learned)
        return Adapter.new(self.backbone, settings.rank, settings.first_layer, rng)

    def keep(self, adapter: Adapter) -> None:
        self.tensors |= {f"{self.learned}.a": adapter.a, f"{self.learned}.b": adapter.b}

    def adapter(self, number: int) -> Adapter:
        a, b = self.tensors[f"{number}.a"], self.tensors[f"{number}.b"]
        return Adapter(a, b, self.settings.first_layer)

    def width(self, task: Task) -> int:
        return self.turns * len(task.classes)

    def training_set(self, task: Task) -> TrainingSet:
        turned = Rotated(self.backbone, task.images, self.turns)
        self.turned = TokenCache(self.backbone, turned, self.settings.first_layer).filled()
        self.count = len(task)
        return super().training_set(task)

    def loss(self, batch: Batch) -> Tensor:
        """Each image in all turns, in one step."""
        features, targets = [batch.features], [batch.targets]
        for k in range(1, self.turns):
            tokens = self.turned[batch.index + k * self.count]
            features.append(self.backbone.pool(adapted(self.backbone, batch.adapter, tokens)))
            targets.append(targets[-1] + len(batch.head.bias) // self.turns)
        z, y = torch.cat(features), torch.cat(targets)
        apart = contrastive(z, y, self.options["temperature"])
        outputs = F.linear(z, batch.head.weight, batch.head.bias)
        return F.cross_entropy(outputs, y) + self.options["contrast"] * apart

    def learn_task(self, task: Task, progress: Progress) -> None:
        super().learn_task(task, progress)
        best = self._outputs(task.images, [self.learned])[0].amax(1)
        self.tensors[f"{self.learned}.shift"] = best.mean()

    def scores(self, images: ImageSequence) -> Tensor:
        models = [self._model(number) for number in range(self.learned)]
        found = self.made_once(models, images, lambda numbers: self._outputs(images, numbers))
        result = torch.full((len(images), len(self.classes)), -torch.inf).to(self.backbone.device)
        for number, outputs in enumerate(found):
            own = self.owned(number)
            shifted = outputs - self.tensors[f"{number}.shift"]
            result[:, own] = result[:, own].maximum(shifted)
        return result

    def _model(self, number: int) -> list[Tensor]:
        """What answers for this task; no later task changes it."""
        return [self.tensors[f"{number}.{part}"] for part in ("a", "b", "weight", "bias")]

    @torch.no_grad()
    def _outputs(self, images: ImageSequence, numbers: Sequence[int]) -> list[Tensor]:
        """f for the classes of each of these tasks: (n, classes of the task)."""
        turned = Rotated(self.backbone, images, self.turns)
        token_cache = TokenCache(self.backbone, turned, self.settings.first_layer)
        found: list[list[Tensor]] = [[] for _ in numbers]
        for index in batches(len(images)):
            turns = [token_cache[index + k * len(images)] for k in range(self.turns)]
            for number, parts in zip(numbers, found, strict=True):
                said = torch.stack([self.said(number, tokens) for tokens in turns])
                own = said.unflatten(2, (self.turns, -1))  # (turn shown, n, turn meant, class)
                parts.append(own.diagonal(dim1=0, dim2=2).mean(2))
        return [torch.cat(parts) for parts in found]

    @property
    def trained(self) -> int:
        return super().trained + sum(self.adapter(t).parameters for t in range(self.learned))


def contrastive(features: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss of a batch; images that are alone in their class count 0.

    >>> apart = torch.eye(2).repeat_interleave(2, dim=0)
    >>> near, far = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    >>> bool(contrastive(apart, near, 0.1) < contrastive(apart, far, 0.1))
    True
    """
    z = F.normalize(features)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    log_share = (z @ z.mT / temperature).masked_fill(itself, -torch.inf).log_softmax(1)
    same = (targets[:, None] == targets) & ~itself
    each = log_share.where(same, 0).sum(1) / same.sum(1).clamp_min(1)
    return -each.mean()
