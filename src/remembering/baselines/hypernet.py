"""HyperNet: one network makes the adapter of every task from a few numbers that stand for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from remembering.adapters.lora import PROJECTIONS, Adapter, OneAdapter
from remembering.baselines.taskwise import InferredTask
from remembering.data.task import Task
from remembering.learning.training import Batch, TrainingSet
from remembering.runtime.seeding import generator


@dataclass(frozen=True)
class Generated(Adapter):
    """An adapter that a network makes of an embedding: `a` has the network, flat, `b` the latter.

    A chunk is the A and B of one projection of one layer. It is made of the embedding e and of the
    chunk's own code c_i, which belongs to the network: W₂ relu(W₁ [e, c_i] + b₁) + b₂.

    Hidden units add up in each number of the adapter, so that a step of AdamW would move it much
    farther than in an adapter that has numbers of its own. So `a` is the network times the root of
    how many there are: in these units a step moves an adapter about as far as it would by itself.
    """

    chunk: tuple[int, int] = (1, 1)
    """Rank and dimension of an adapter."""
    chunks: int = 0
    hidden: int = 1

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the network's tensors, in the order in which they lie in `a`."""
        out, embedding = 2 * math.prod(self.chunk), len(self.b)
        return {
            "codes": (self.chunks, embedding),
            "weight1": (self.hidden, 2 * embedding),
            "bias1": (self.hidden,),
            "weight2": (out, self.hidden),
            "bias2": (out,),
        }

    def started(self, rng: torch.Generator) -> Generated:
        """With a random network whose adapters are like new ones: A random, B zero."""
        _, dim = self.chunk
        parts = []
        for name, shape in self.shapes().items():
            part = torch.zeros(shape)
            if name == "codes":
                part.normal_(generator=rng)
            elif name == "weight1":
                bound = 1 / math.sqrt(shape[1])
                part.uniform_(-bound, bound, generator=rng)
            elif name == "weight2":  # so that A varies as much as in a new adapter
                bound = math.sqrt(6 / (self.hidden * dim))
                part[: shape[0] // 2].uniform_(-bound, bound, generator=rng)
            parts.append(part.flatten())
        return replace(self, a=torch.cat(parts).to(self.b.device) * math.sqrt(self.hidden))

    def made(self) -> Tensor:
        """All chunks: (chunks, 2 · rank · dim)."""
        shapes = self.shapes()
        network = self.a / math.sqrt(self.hidden)
        flat = network.split([math.prod(shape) for shape in shapes.values()])
        codes, weight1, bias1, weight2, bias2 = (
            part.view(shape) for part, shape in zip(flat, shapes.values(), strict=True)
        )
        x = torch.cat([self.b.expand(len(codes), -1), codes], dim=1)
        result: Tensor = (x @ weight1.mT + bias1).relu() @ weight2.mT + bias2
        return result

    def active(self) -> OneAdapter:
        rank, dim = self.chunk
        a, b = self.made().view(-1, PROJECTIONS, 2, rank * dim).unbind(2)
        return OneAdapter(
            a.reshape(*a.shape[:2], rank, dim), b.reshape(*b.shape[:2], dim, rank), self.first_layer
        )

    def trainable(self) -> Generated:
        a, b = (t.detach().clone().requires_grad_() for t in (self.a, self.b))
        return replace(self, a=a, b=b)

    def frozen(self) -> Generated:
        return replace(self, a=self.a.detach().clone(), b=self.b.detach().clone())


class HyperNet(InferredTask):
    """The network is trained for the new task, and held to what it makes for the old ones.

    With h(e; Θ) all numbers of the adapter that the network Θ makes of an embedding e,

        ℓ = ℓ_CE(h(e_t; Θ)) + β / t Σ_{s < t} ‖h(e_s; Θ*) − h(e_s; Θ)‖²

    over Θ, e_t and the head of task t (from 0), where Θ* is the network before the task. An image
    is of the task under whose adapter and head the answer p has the least H(p) / log C_t, its
    entropy as a share of the greatest that C_t classes can have.

    Adapted: the network makes LoRA adapters, one projection at a time ("chunks"), and no heads;
    each task keeps its own. The paper's look-ahead of Θ within the penalty is left out: it takes a
    second backward pass a step.

    The paper's β for CIFAR is 0.01 or 0.05, by the network; it is 0.01 here. The network is as
    large as one or two adapters of the bundled backbone, and an embedding as wide as the paper's
    for its ResNet.
    """

    name = "hypernet"
    title = "HyperNet"
    reference = "von Oswald et al. (2020), Continual learning with hypernetworks, arXiv:1906.00695"
    published = "HyperNet"
    stores = "the network that makes adapters, and one embedding and one head a task"
    defaults: ClassVar[Mapping[str, float]] = {"strength": 0.01, "embedding": 32, "hidden": 32}

    def new_adapter(self) -> Generated:
        rng = generator(self.settings.seed, "hypernet", self.learned)
        embedding = torch.randn(int(self.options["embedding"]), generator=rng)
        fresh = self._generated(torch.empty(0), embedding.to(self.backbone.device))
        return replace(fresh, a=self.tensors["network"]) if self.learned else fresh.started(rng)

    def keep(self, adapter: Adapter) -> None:
        self.tensors |= {"network": adapter.a, f"{self.learned}.embedding": adapter.b}

    def adapter(self, number: int) -> Generated:
        return self._generated(self.tensors["network"], self.tensors[f"{number}.embedding"])

    def training_set(self, task: Task) -> TrainingSet:
        self.old = [self.adapter(number) for number in range(self.learned)]
        self.made = [adapter.made() for adapter in self.old]
        return super().training_set(task)

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        if not self.old:
            return loss
        moved = [
            (replace(adapter, a=batch.adapter.a).made() - made).square().sum()
            for adapter, made in zip(self.old, self.made, strict=True)
        ]
        return loss + self.options["strength"] * torch.stack(moved).mean()

    def choose(self, tokens: Tensor) -> Tensor:
        found = []
        for number in range(self.learned):
            p = self.said(number, tokens).softmax(1)
            found.append(torch.special.entr(p).sum(1) / math.log(p.shape[1]))
        return torch.stack(found).argmin(0)

    def _generated(self, network: Tensor, embedding: Tensor) -> Generated:
        settings, backbone = self.settings, self.backbone
        return Generated(
            network,
            embedding,
            settings.first_layer,
            (settings.rank, backbone.dim),
            PROJECTIONS * (backbone.depth - settings.first_layer),
            int(self.options["hidden"]),
        )

    @property
    def trained(self) -> int:
        network = self.tensors["network"].numel()
        return super().trained + network + self.learned * int(self.options["embedding"])
