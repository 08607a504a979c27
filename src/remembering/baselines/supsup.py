"""SupSup: one random adapter for all tasks, never trained, and a mask of it for each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from remembering.adapters import PROJECTIONS, Adapter, MixedAdapters, OneAdapter
from remembering.baselines.taskwise import InferredTask
from remembering.seeding import generator


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
    are trained, their gradient passing straight through the step, and thrown away. For an image

        p(α) = f(x; Σ_t α_t W ⊙ M_t)   with α_t = 1 / k for all of k tasks,

    and its task is the one whose share would lower the entropy H of the answer fastest:
    argmax_t − ∂H(p(α)) / ∂α_t ("one-shot"). Its own mask then answers.

    Adapted: W are A and B of one adapter, constants with random signs, drawn from the seed and not
    stored; heads are trained and kept, one a task, and superposed as the masks are, output i of
    each with output i of the others. The backbone is good as it is, and a random half of W would
    spoil it: so scores of B begin below 0, and the first mask is empty, as a new adapter is. All
    begin within `spread` steps of 0. A mask takes a byte an entry where a bit would do.

    `scale` (of B, in 1 / √dim) and `spread` were chosen on scikit-learn's digits, on training
    images that were held out.
    """

    name = "supsup"
    title = "SupSup"
    reference = "Wortsman et al. (2020), Supermasks in superposition, arXiv:2006.14769"
    published = "SupSup"
    stores = "one mask and one head a task; the random adapter comes from the seed"
    defaults: ClassVar[Mapping[str, float]] = {"scale": 1.0, "spread": 4.0}

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

    @property
    def trained(self) -> int:
        """Scores too, of which masks are what is kept."""
        return super().trained + self.learned * sum(w.numel() for w in self.fixed)

    def choose(self, tokens: Tensor) -> Tensor:
        numbers = range(self.learned)
        adapters, heads = [self.adapter(t) for t in numbers], [self.head(t) for t in numbers]
        a, b = torch.stack([x.a for x in adapters]), torch.stack([x.b for x in adapters])
        pad = torch.nn.utils.rnn.pad_sequence
        weight = pad([head.weight for head in heads], batch_first=True)
        bias = pad([head.bias for head in heads], batch_first=True)
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
            entropy = torch.special.entr(outputs.softmax(1)).sum()
            (slope,) = torch.autograd.grad(entropy, alpha)
        return slope.argmin(1)
