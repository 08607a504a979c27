"""IL2A: mixed images are classes of their own, and old classes are replayed with their spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.heads import Head
from remembering.baselines.prototypes import PrototypeReplay, distance, pooled
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet
from remembering.runtime.seeding import generator

UNIFORMS = 39
"""The median of so many uniform numbers is distributed as Beta(20, 20)."""


class IL2A(PrototypeReplay):
    """Class augmentation and semantic augmentation.

    ℓ = ℓ_CE + λ_d mean ‖f(x) − f_old(x)‖ + λ_p CE(z̃_c, c).

    Class augmentation: images of two classes of the task are mixed, λ x₁ + (1 − λ) x₂ with
    λ ~ Beta(20, 20) and 0.4 ≤ λ ≤ 0.6 (½ if it falls outside), and each pair of classes is a class
    of its own in ℓ_CE. Semantic augmentation: features of an old class c, drawn without end from
    N(μ_c, γ Σ_c), have a cross entropy of at most that of the outputs

        z̃_cj = w_jᵀ μ_c + b_j + γ / 2 (w_j − w_c)ᵀ Σ_c (w_j − w_c).

    Adapted: adapter and head only. Tokens are mixed where they enter the first adapted layer; if
    that is the first of all, and the embedding is affine (all but CLIP's), this is to mix the
    images. The rows of mixed classes are let go after their task. Features of mixed images are not
    distilled. Each batch is mixed once, where PyCIL's version does so four times. Outputs are not
    divided by a temperature. γ and the range of λ are PyCIL's.
    """

    name = "il2a"
    title = "IL2A"
    reference = "Zhu et al. (2021), Class-incremental learning via dual augmentation, NeurIPS 2021"
    published = "IL2A"
    stores = "one adapter and one head, the mean and the covariance of the features of each class"
    defaults: ClassVar[Mapping[str, float]] = {
        **PrototypeReplay.defaults,
        "spread": 2.5,
        "mixes": 1,
    }

    def spare(self, task: Task) -> int:
        count = len(task.classes)
        return count * (count - 1) // 2 if self.options["mixes"] else 0

    def begin(self, task: Task, training_set: TrainingSet) -> None:
        super().begin(task, training_set)
        self.within = task.targets

    def loss(self, batch: Batch) -> Tensor:
        outputs, targets = [batch.outputs], [batch.targets]
        rng = generator(self.settings.seed, "il2a", "mix", self.learned, batch.step)
        for _ in range(int(self.options["mixes"])):
            tokens, pair = mixed(batch.tokens, self.within[batch.index], rng)
            if not len(pair):  # all of one class
                continue
            features = pooled(self, batch.adapter, tokens)
            outputs.append(F.linear(features, batch.head.weight, batch.head.bias))
            targets.append(len(self.classes) + pair.to(batch.targets.device))
        loss = F.cross_entropy(torch.cat(outputs), torch.cat(targets))
        if not self.learned:
            return loss
        moved = distance(batch.features, self.features_before(batch, self.old)).mean()
        return loss + self.options["distil"] * moved + self.options["replay"] * self.recalled(batch)

    def recalled_outputs(self, head: Head, drawn: Tensor, rng: torch.Generator) -> Tensor:
        """Of old classes, over all classes but the mixed ones."""
        rows = len(self.classes)
        weight, bias = head.weight[:rows], head.bias[:rows]
        outputs = F.linear(self.tensors["means"], weight, bias)
        apart = weight[None] - weight[: len(outputs), None]
        spread = torch.einsum("cjd,cde,cje->cj", apart, self.tensors["covariances"], apart)
        return (outputs + self.options["spread"] / 2 * spread)[drawn]

    def summary(self, features: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Covariances over all images of a class so far, also if it comes back."""
        kept = super().summary(features, targets)
        means, counts = kept["means"].double(), kept["counts"]
        dim = features.shape[1]
        squares = means.new_zeros(len(means), dim, dim)
        if self.learned:
            old, before = self.tensors["means"].double(), self.tensors["counts"]
            around = self.tensors["covariances"].double() + old[:, :, None] * old[:, None]
            squares[: len(old)] = around * before[:, None, None]
        for c in targets.unique():
            own = features[targets == c].double()
            squares[c] += own.mT @ own
        squares = squares / counts[:, None, None] - means[:, :, None] * means[:, None]
        return {**kept, "covariances": squares.float()}


def mixed(tokens: Tensor, classes: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each image mixed with another at random, if of another class; and the pair's number.

    >>> _, pair = mixed(torch.zeros(9, 1, 1), torch.arange(9) % 3, torch.Generator().manual_seed(0))
    >>> sorted(set(pair.tolist()))
    [0, 1, 2]
    """
    other = torch.randperm(len(tokens), generator=rng)
    share = torch.rand(len(tokens), UNIFORMS, generator=rng).median(1).values
    share[(share < 0.4) | (share > 0.6)] = 0.5
    apart = classes != classes[other]
    share = share[apart, None, None].to(tokens)
    high, low = classes.maximum(classes[other])[apart], classes.minimum(classes[other])[apart]
    first, second = tokens[apart.to(tokens.device)], tokens[other[apart].to(tokens.device)]
    return share * first + (1 - share) * second, high * (high - 1) // 2 + low
