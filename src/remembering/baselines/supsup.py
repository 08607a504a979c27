"""SupSup: one fixed random adapter for all tasks, and one trained mask of it per task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.adapters.lora import PROJECTIONS, Adapter, MixedAdapters, OneAdapter
from remembering.baselines.taskwise import DerivedAdapter, InferredTask
from remembering.data.task import Task
from remembering.learning.training import Batch
from remembering.runtime.seeding import generator


@dataclass(frozen=True)
class MaskedAdapter(DerivedAdapter):
    """A fixed adapter masked by scores: entries whose score in `a` or `b` is negative are 0."""

    fixed: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def active(self) -> OneAdapter:
        a, b = (w * binary_mask(s) for w, s in zip(self.fixed, (self.a, self.b), strict=True))
        return OneAdapter(a, b, self.first_layer)


def binary_mask(scores: Tensor) -> Tensor:
    """Return 1 where a score is not negative, else 0, with straight-through gradients.

    >>> binary_mask(torch.tensor([-0.5, 0.5]))
    tensor([0., 1.])
    """
    return (scores >= 0).float() + scores - scores.detach()


class SupSup(InferredTask):
    """Learn supermasks in superposition: one mask per task, inferred with a single gradient.

    W are fixed random weights, and W ⊙ M_t with M_t = [S_t ≥ 0] are the weights of task t. The
    scores S_t are trained with straight-through gradients and then discarded. A head has `outputs`
    outputs. The first represent classes; the others are superfluous and represent no class, so
    training makes them small for images of the task. For an image,

        z(α) = f(x; Σ_t α_t W ⊙ M_t)   with α_t = 1 / k for all of k tasks,

    and the inferred task is the one whose coefficient reduces the entropy of the prediction
    fastest: argmax_t − ∂H(softmax z(α)) / ∂α_t ("one-shot"). Its mask then makes the prediction.
    With the option `g`, the paper's G = log Σ_i exp z_i replaces H, with gradients through the
    superfluous outputs alone.

    Adaptation: W are A and B of one adapter, constants with random signs, generated from the seed
    and not stored. Heads are trained and stored, one per task, and superposed like the masks,
    output i of each with output i of the others. They start from zero, so all superfluous outputs
    of a task stay equal, and one row represents all of them. A random half of W would degrade the
    pretrained backbone, so the scores of B start below 0 and the first mask is empty, as in a new
    adapter. All scores start within `spread` steps of 0. A mask takes one byte per entry where one
    bit would suffice.

    Defaults: 500 `outputs` are the authors' for permuted MNIST. `scale` (of B, in 1 / √dim),
    `spread` and the choice of H were tuned on held-out training images of scikit-learn's digits; G
    suits permuted MNIST (docs/baselines.md).
    """

    name = "supsup"
    title = "SupSup"
    reference = "Wortsman et al. (2020), Supermasks in superposition, arXiv:2006.14769"
    stores = "one mask and one head per task; the random adapter is regenerated from the seed"
    defaults: ClassVar[Mapping[str, float]] = {"scale": 1.0, "spread": 4.0, "outputs": 500, "g": 0}

    def set_up(self) -> None:
        backbone, settings = self.backbone, self.settings
        rng = generator(settings.seed, "supsup")
        shape = (backbone.depth - settings.first_layer, PROJECTIONS, settings.rank, backbone.dim)
        unit = 1 / math.sqrt(backbone.dim)
        signs = torch.randint(2, (2, *shape), generator=rng).to(backbone.device) * 2 - 1
        self.fixed = signs[0] * unit, signs[1].mT * unit * self.options["scale"]

    def new_adapter(self) -> MaskedAdapter:
        rng = generator(self.settings.seed, "supsup", self.learned)
        width = self.options["spread"] * self.settings.lr
        a, b = (torch.rand(w.shape, generator=rng).to(w) * width for w in self.fixed)
        return MaskedAdapter(2 * a - width, b - width, self.settings.first_layer, self.fixed)

    def store_adapter(self, adapter: Adapter) -> None:
        masks = {"a": adapter.a >= 0, "b": adapter.b >= 0}
        self.tensors |= {f"{self.learned}.mask.{name}": mask for name, mask in masks.items()}

    def adapter(self, number: int) -> Adapter:
        a, b = (
            w * self.tensors[f"{number}.mask.{name}"]
            for w, name in zip(self.fixed, "ab", strict=True)
        )
        return Adapter(a, b, self.settings.first_layer)

    def width(self, task: Task) -> int:
        """Return one row per class and one row for all superfluous outputs."""
        return len(task.classes) + 1

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(batch.outputs + self._log_counts(batch.outputs), batch.targets)

    def _log_counts(self, logits: Tensor) -> Tensor:
        """Return log counts of the outputs that rows represent; the last, all superfluous ones."""
        counts = torch.ones_like(logits[0])
        counts[-1] = max(self.options["outputs"] - len(counts) + 1, 1)
        return counts.log()

    def task_logits(self, number: int, tokens: Tensor) -> Tensor:
        return super().task_logits(number, tokens)[:, :-1]

    @property
    def trained(self) -> int:
        """Trained parameters, including the scores, of which only the masks are stored."""
        return super().trained + self.learned * sum(w.numel() for w in self.fixed)

    def infer_task(self, tokens: Tensor) -> Tensor:
        numbers = range(self.learned)
        adapters, heads = [self.adapter(t) for t in numbers], [self.head(t) for t in numbers]
        a, b = torch.stack([x.a for x in adapters]), torch.stack([x.b for x in adapters])
        # Outputs beyond the classes of a task are superfluous.
        widest = max(len(head.bias) for head in heads)
        rows = [torch.arange(widest).clamp_max(len(head.bias) - 1) for head in heads]
        weight = torch.stack([head.weight[row] for head, row in zip(heads, rows, strict=True)])
        bias = torch.stack([head.bias[row] for head, row in zip(heads, rows, strict=True)])
        with torch.enable_grad():
            alpha = tokens.new_full((len(tokens), self.learned), 1 / self.learned)
            alpha.requires_grad_()
            superposed = MixedAdapters(
                torch.einsum("nt,t...->n...", alpha, a),
                torch.einsum("nt,t...->n...", alpha, b),
                self.settings.first_layer,
            )
            start = self.settings.first_layer
            features = self.backbone.pool(
                self.backbone.finish(tokens, start=start, adapters=superposed)
            )
            logits = torch.einsum("nt,tcd,nd->nc", alpha, weight, features) + alpha @ bias
            log_counts = self._log_counts(logits)
            if self.options["g"]:
                logits = torch.cat([logits[:, :-1].detach(), logits[:, -1:]], dim=1)
                objective = (logits + log_counts).logsumexp(1)
            else:
                p = (logits + log_counts).softmax(1)
                objective = (torch.special.entr(p) + p * log_counts).sum(1)
            (gradient,) = torch.autograd.grad(objective.sum(), alpha)
        return gradient.argmin(1)
