"""SupSup: one random adapter for all tasks, never trained, and a mask of it for each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.lora import PROJECTIONS, Adapter, MixedAdapters, OneAdapter
from remembering.baselines.taskwise import InferredTask
from remembering.data.task import Task
from remembering.learning.training import Batch
from remembering.runtime.seeding import generator


@dataclass(frozen=True)
class Masked(Adapter):
    """A fixed adapter of which those entries act whose score, in `a` and `b`, is not negative."""

    fixed: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def active(self) -> OneAdapter:
        a, b = (w * gate(s) for w, s in zip(self.fixed, (self.a, self.b), strict=True))
        return OneAdapter(a, b, self.first_layer)

    def trainable(self) -> Masked:
        a, b = (t.detach().clone().requires_grad_() for t in (self.a, self.b))
        return replace(self, a=a, b=b)

    def frozen(self) -> Masked:
        return replace(self, a=self.a.detach().clone(), b=self.b.detach().clone())


def gate(scores: Tensor) -> Tensor:
    """1 where a score is not negative, else 0; gradients pass as if it were the score itself.

    >>> gate(torch.tensor([-0.5, 0.5]))
    tensor([0., 1.])
    """
    return (scores >= 0).float() + scores - scores.detach()


class SupSup(InferredTask):
    """Supermasks in superposition: a task is a mask, and its mask is found by one gradient.

    W are fixed random numbers, W ⊙ M_t with M_t = [S_t ≥ 0] the weights of task t; its scores S_t
    are trained, their gradient passing straight through the step, and thrown away. A head has
    `outputs` outputs, of which the first stand for classes and the others, the superfluous ones,
    for none: training makes them small for images of the task. For an image

        z(α) = f(x; Σ_t α_t W ⊙ M_t)   with α_t = 1 / k for all of k tasks,

    and its task is the one whose share would lower the entropy of the answer fastest:
    argmax_t − ∂H(softmax z(α)) / ∂α_t ("one-shot"). Its own mask then answers. With the option `g`,
    the paper's G = log Σ_i exp z_i is in the place of H, its gradient passing through superfluous
    outputs alone.

    Adapted: W are A and B of one adapter, constants with random signs, drawn from the seed and not
    stored; heads are trained and kept, one a task, and superposed as the masks are, output i of
    each with output i of the others. They start from zero, so that all superfluous outputs of a
    task stay alike: one row stands for all of them. The backbone is good as it is, and a random
    half of W would spoil it: so scores of B begin below 0, and the first mask is empty, as a new
    adapter is. All begin within `spread` steps of 0. A mask takes a byte an entry where a bit would
    do.

    500 outputs are the authors' for permuted MNIST. `scale` (of B, in 1 / √dim) and `spread` were
    chosen on scikit-learn's digits, on training images that were held out, and so was H; G suits
    permuted MNIST (docs/rivals.md).
    """

    name = "supsup"
    title = "SupSup"
    reference = "Wortsman et al. (2020), Supermasks in superposition, arXiv:2006.14769"
    published = "SupSup"
    stores = "one mask and one head a task; the random adapter comes from the seed"
    defaults: ClassVar[Mapping[str, float]] = {"scale": 1.0, "spread": 4.0, "outputs": 500, "g": 0}

    def set_up(self) -> None:
        backbone, settings = self.backbone, self.settings
        rng = generator(settings.seed, "supsup")
        shape = (backbone.depth - settings.first_layer, PROJECTIONS, settings.rank, backbone.dim)
        unit = 1 / math.sqrt(backbone.dim)
        signs = torch.randint(2, (2, *shape), generator=rng).to(backbone.device) * 2 - 1
        self.fixed = signs[0] * unit, signs[1].mT * unit * self.options["scale"]

    def new_adapter(self) -> Masked:
        rng = generator(self.settings.seed, "supsup", self.learned)
        width = self.options["spread"] * self.settings.lr
        a, b = (torch.rand(w.shape, generator=rng).to(w) * width for w in self.fixed)
        return Masked(2 * a - width, b - width, self.settings.first_layer, self.fixed)

    def keep(self, adapter: Adapter) -> None:
        masks = {"a": adapter.a >= 0, "b": adapter.b >= 0}
        self.tensors |= {f"{self.learned}.mask.{name}": mask for name, mask in masks.items()}

    def adapter(self, number: int) -> Adapter:
        a, b = (
            w * self.tensors[f"{number}.mask.{name}"]
            for w, name in zip(self.fixed, "ab", strict=True)
        )
        return Adapter(a, b, self.settings.first_layer)

    def width(self, task: Task) -> int:
        """A row for each class, and one for all superfluous outputs."""
        return len(task.classes) + 1

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(batch.outputs + self._counted(batch.outputs), batch.targets)

    def _counted(self, outputs: Tensor) -> Tensor:
        """log of how many outputs each one stands for: the last for all superfluous ones."""
        count = torch.ones_like(outputs[0])
        count[-1] = max(self.options["outputs"] - len(count) + 1, 1)
        return count.log()

    def said(self, number: int, tokens: Tensor) -> Tensor:
        return super().said(number, tokens)[:, :-1]

    @property
    def trained(self) -> int:
        """Scores too, of which masks are what is kept."""
        return super().trained + self.learned * sum(w.numel() for w in self.fixed)

    def choose(self, tokens: Tensor) -> Tensor:
        numbers = range(self.learned)
        adapters, heads = [self.adapter(t) for t in numbers], [self.head(t) for t in numbers]
        a, b = torch.stack([x.a for x in adapters]), torch.stack([x.b for x in adapters])
        # Beyond its own classes a task has superfluous outputs only.
        most = max(len(head.bias) for head in heads)
        rows = [torch.arange(most).clamp_max(len(head.bias) - 1) for head in heads]
        weight = torch.stack([head.weight[row] for head, row in zip(heads, rows, strict=True)])
        bias = torch.stack([head.bias[row] for head, row in zip(heads, rows, strict=True)])
        with torch.enable_grad():
            alpha = tokens.new_full((len(tokens), self.learned), 1 / self.learned)
            alpha.requires_grad_()
            mixed = MixedAdapters(
                torch.einsum("nt,t...->n...", alpha, a),
                torch.einsum("nt,t...->n...", alpha, b),
                self.settings.first_layer,
            )
            last = self.backbone.finish(tokens, start=self.settings.first_layer, adapters=mixed)
            features = self.backbone.pool(last)
            outputs = torch.einsum("nt,tcd,nd->nc", alpha, weight, features) + alpha @ bias
            if self.options["g"]:
                outputs = torch.cat([outputs[:, :-1].detach(), outputs[:, -1:]], dim=1)
                objective = (outputs + self._counted(outputs)).logsumexp(1)
            else:
                p = (outputs + self._counted(outputs)).softmax(1)
                objective = (torch.special.entr(p) + p * self._counted(outputs)).sum(1)
            (slope,) = torch.autograd.grad(objective.sum(), alpha)
        return slope.argmin(1)
