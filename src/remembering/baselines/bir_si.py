"""Brain-inspired replay combined with synaptic intelligence (BI-R + SI)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from remembering.baselines.bir import BIR, CLASSIFIER, Parameters
from remembering.baselines.importance import PathImportance, stored, to_store


class BIRSI(BIR):
    """Add SI's quadratic penalty on the classifier's parameters to the loss of BI-R.

    ℓ = ℓ_BI-R + c Σ_i Ω_i (θ_i − θ*_i)²,   Ω_i ← Ω_i + max(0, ω_i) / ((θ_i − θ*_i)² + ξ),

    where ω_i = −Σ g_i Δθ_i over the steps of a task, with g the gradient of ℓ_BI-R alone, and θ*
    are the parameters at the start of the task. θ are the hidden layers and the head. The decoder,
    the latent units and the priors are not penalized, because they learn from generated features.

    Adaptation: as for BI-R and SI.

    Defaults: `damping` (ξ) is SI's value for permuted MNIST. `strength` (c) was tuned on held-out
    training images of scikit-learn's digits.
    """

    name = "bir_si"
    title = "BI-R + SI"
    reference = (
        "van de Ven et al. (2020), Brain-inspired replay for continual learning with artificial "
        "neural networks, Nature Communications 11:4069; with Zenke et al. (2017), arXiv:1703.04200"
    )
    stores = "the network and priors of BI-R, and one importance value per classifier parameter"
    defaults: ClassVar[Mapping[str, float]] = {**BIR.defaults, "strength": 1.0, "damping": 0.1}

    def begin(self, theta: Parameters) -> None:
        start = {name: theta[name].detach().clone() for name in CLASSIFIER}
        old = stored(self.tensors, "importance", CLASSIFIER) if self.learned else {}
        self.path = PathImportance(start, old, self.options["strength"])

    def penalty(self, theta: Parameters) -> Tensor:
        return self.path.penalty(theta)

    def on_step_end(self, theta: Parameters, before: Parameters) -> None:
        self.path.update(theta, before)

    def end(self) -> None:
        importance = self.path.importance_after(self.tensors, self.options["damping"])
        self.tensors |= to_store(importance, "importance")
