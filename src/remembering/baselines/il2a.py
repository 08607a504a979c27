"""IL2A: class augmentation by mixing images, semantic augmentation by class covariances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.baselines.prototypes import PrototypeReplay, distance
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet
from remembering.runtime.seeding import generator

UNIFORMS = 39
"""The median of this many uniform random numbers is distributed as Beta(20, 20)."""


class IL2A(PrototypeReplay):
    """Apply class augmentation to new classes and semantic augmentation to old ones.

    ℓ = ℓ_CE + λ_d mean ‖f(x) − f_old(x)‖ + λ_p CE(z̃_c, c).

    Class augmentation: images of two classes of the task are mixed, λ x₁ + (1 − λ) x₂ with
    λ ~ Beta(20, 20) and 0.4 ≤ λ ≤ 0.6 (½ if outside this range), and each pair of classes is a
    separate class in ℓ_CE. Semantic augmentation: with infinitely many features of an old class c
    drawn from N(μ_c, γ Σ_c), the cross entropy is at most that of the logits

        z̃_cj = w_jᵀ μ_c + b_j + γ / 2 (w_j − w_c)ᵀ Σ_c (w_j − w_c).

    Adaptation: applies to adapter and head only. Tokens are mixed at the input of the first adapted
    layer; if that is the first layer of the backbone and the embedding is affine (all but CLIP's),
    this is equivalent to mixing images. The rows of mixed classes are discarded after their task.
    Features of mixed images are not distilled. Each batch is mixed once, where PyCIL's version
    does so four times. Logits are not divided by a temperature.

    Defaults: `spread` (γ) and the range of λ are PyCIL's; for the others see `PrototypeReplay`.
    """

    name = "il2a"
    title = "IL2A"
    reference = "Zhu et al. (2021), Class-incremental learning via dual augmentation, NeurIPS 2021"
    published = "IL2A"
    stores = "one adapter, one head, and the mean and covariance of the features of each class"
    defaults: ClassVar[Mapping[str, float]] = {
        **PrototypeReplay.defaults,
        "spread": 2.5,
        "mixes": 1,
    }

    def auxiliary_rows(self, task: Task) -> int:
        count = len(task.classes)
        return count * (count - 1) // 2 if self.options["mixes"] else 0

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        super().begin(task, training_set)
        self.task_targets = task.targets

    def loss(self, batch: Batch) -> Tensor:
        logits, targets = [batch.outputs], [batch.targets]
        rng = generator(self.settings.seed, "il2a", "mix", self.learned, batch.step)
        for _ in range(int(self.options["mixes"])):
            tokens, pair = mix(batch.tokens, self.task_targets[batch.index], rng)
            if not len(pair):  # The batch has one class only.
                continue
            features = self.adapted_features(batch.adapter, tokens)
            logits.append(F.linear(features, batch.head.weight, batch.head.bias))
            targets.append(len(self.classes) + pair.to(batch.targets.device))
        loss = F.cross_entropy(torch.cat(logits), torch.cat(targets))
        if not self.learned:
            return loss
        distil, replay = self.options["distil"], self.options["replay"]
        change = distance(batch.features, self.features_before(batch, self.old)).mean()
        return loss + distil * change + replay * self.replay_loss(batch)

    def prototype_logits(self, head: Head, classes: Tensor, rng: torch.Generator) -> Tensor:
        """Return z̃_c over all classes except the mixed ones."""
        rows = len(self.classes)
        weight, bias = head.weight[:rows], head.bias[:rows]
        logits = F.linear(self.tensors["means"], weight, bias)
        difference = weight[None] - weight[: len(logits), None]
        covariances = self.tensors["covariances"]
        spread = torch.einsum("cjd,cde,cje->cj", difference, covariances, difference)
        return (logits + self.options["spread"] / 2 * spread)[classes]

    def statistics(self, features: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return means, counts, and covariances over all images of each class so far."""
        statistics = super().statistics(features, targets)
        means, counts = statistics["means"].double(), statistics["counts"]
        dim = features.shape[1]
        squares = means.new_zeros(len(means), dim, dim)
        if self.learned:
            old, before = self.tensors["means"].double(), self.tensors["counts"]
            moments = self.tensors["covariances"].double() + old[:, :, None] * old[:, None]
            squares[: len(old)] = moments * before[:, None, None]
        for c in targets.unique():
            members = features[targets == c].double()
            squares[c] += members.mT @ members
        squares = squares / counts[:, None, None] - means[:, :, None] * means[:, None]
        return {**statistics, "covariances": squares.float()}


def mix(tokens: Tensor, classes: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return mixtures of images of different classes, paired at random, and their pair numbers.

    >>> _, pair = mix(torch.zeros(9, 1, 1), torch.arange(9) % 3, torch.Generator().manual_seed(0))
    >>> sorted(set(pair.tolist()))
    [0, 1, 2]
    """
    other = torch.randperm(len(tokens), generator=rng)
    share = torch.rand(len(tokens), UNIFORMS, generator=rng).median(1).values
    share[(share < 0.4) | (share > 0.6)] = 0.5
    differ = classes != classes[other]
    share = share[differ, None, None].to(tokens)
    high, low = classes.maximum(classes[other])[differ], classes.minimum(classes[other])[differ]
    first, second = tokens[differ.to(tokens.device)], tokens[other[differ].to(tokens.device)]
    return share * first + (1 - share) * second, high * (high - 1) // 2 + low
