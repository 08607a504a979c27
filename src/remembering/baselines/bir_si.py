"""Brain-inspired replay with synaptic intelligence: what mattered to the past is also held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from remembering.baselines.bir import ANSWERING, BIR, Parameters


class BIRSI(BIR):
    """BI-R's loss, and SI's quadratic penalty on the parameters that answer.

    ℓ = ℓ_BI-R + c Σ_i Ω_i (θ_i − θ*_i)²,   Ω_i ← Ω_i + max(0, ω_i) / ((θ_i − θ*_i)² + ξ),

    where ω_i = −Σ g_i Δθ_i along the steps of a task, with g the gradient of ℓ_BI-R alone, and θ*
    is where the task began. θ are the hidden layers and the head; the decoder, the latent units
    and the priors are left free, as they learn from dreams.

    Adapted as BI-R and SI are. ξ is SI's own on permuted MNIST; c was chosen on training images of
    scikit-learn's digits that were held out.
    """

    name = "bir_si"
    title = "BI-R + SI"
    reference = (
        "van de Ven et al. (2020), Brain-inspired replay for continual learning with artificial "
        "neural networks, Nature Communications 11:4069; with Zenke et al. (2017), arXiv:1703.04200"
    )
    published = "BI-R+SI"
    stores = "what BI-R stores, and what each answering parameter mattered"
    defaults: ClassVar[Mapping[str, float]] = {**BIR.defaults, "strength": 1.0, "damping": 0.1}

    def begin(self, theta: Parameters) -> None:
        self.start = {name: theta[name].detach().clone() for name in ANSWERING}
        self.path = {name: torch.zeros_like(value) for name, value in self.start.items()}
        self.importance = {name: torch.zeros_like(value) for name, value in self.start.items()}
        if self.learned:
            for name, value in self.importance.items():
                old = self.tensors[f"importance.{name}"]
                value[: len(old)] = old

    def penalty(self, theta: Parameters) -> Tensor:
        terms = [
            (self.importance[name] * (theta[name] - self.start[name]).square()).sum()
            for name in ANSWERING
        ]
        return self.options["strength"] * torch.stack(terms).sum()

    @torch.no_grad()
    def on_step_end(self, theta: Parameters, before: Parameters) -> None:
        for name in ANSWERING:
            slope = theta[name].grad
            assert slope is not None
            moved = before[name] - self.start[name]
            pull = 2 * self.options["strength"] * self.importance[name] * moved
            self.path[name] -= (slope - pull) * (theta[name] - before[name])

    def end(self) -> None:
        for name in ANSWERING:
            moved = (self.tensors[name] - self.start[name]).square()
            gained = self.path[name].relu() / (moved + self.options["damping"])
            self.tensors[f"importance.{name}"] = self.importance[name] + gained
