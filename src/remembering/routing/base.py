"""Who knows this input: the contract of every router.

A router keeps one small generative model, an *expert*, per task. An expert is a dictionary of
tensors, so that routers of all kinds are stored and moved alike; what experts have in common is
such a dictionary too. The lower an expert's error, the more familiar the input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from remembering.config import RouterSettings
from remembering.errors import RememberingError
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed
from remembering.runtime.mmap_buffer import chunk_rows

Expert = dict[str, Tensor]


class Router(ABC):
    """Scores inputs against the experts of all tasks in one batched operation.

    To add a router, subclass this or `ReconstructionRouter`, write what is abstract, and name the
    class in `remembering.routing.ROUTERS`; `tests/routers/test_routers.py` then runs on it.
    """

    is_class_conditional = False
    """Whether experts tell the classes of their task apart: then there is `class_logits`."""

    def __init__(self, settings: RouterSettings):
        self.settings = settings
        self.experts: dict[int, Expert] = {}
        self.shared: Expert = {}
        """What all experts have in common; changes with every task that is added."""

    @abstractmethod
    def fit(
        self,
        features: Tensor,
        targets: Tensor,
        rng: torch.Generator,
        distributed: Distributed = SINGLE_PROCESS,
    ) -> Expert:
        """Fit an expert to the features (n, dim) and targets (n,) of one task; not added yet.

        Each process of an `distributed` gives its own rows of the features, and the targets of all.
        """

    @abstractmethod
    def score(self, features: Tensor) -> Tensor:
        """Errors (n, tasks) under the experts of all tasks, in the order they were added."""

    @abstractmethod
    def ood_score(self, features: Tensor) -> Tensor:
        """How little each input resembles anything known: (n,)."""

    @abstractmethod
    def novelty(self, features: Tensor) -> Tensor:
        """p-values (n,): how often an image of what is known would look as strange, or more."""

    @abstractmethod
    def encode(self, features: Tensor, expert: Expert) -> Tensor:
        """Latent representation (n, latent) of the features under one expert, for herding."""

    def refine(self, task: int, features: Tensor, targets: Tensor) -> None:
        """Let the expert of a task see more of it."""
        self.check_refinable()

    def check_refinable(self) -> None:
        """Raise if experts cannot see more of their task."""
        raise RememberingError(
            f"the experts of a {self.settings.kind} router cannot be refined; use a gaussian one"
        )

    def class_logits(self, features: Tensor) -> Tensor:
        """Log-likelihoods (n, classes of all tasks) up to a constant, task after task."""
        raise RememberingError(
            f"a {self.settings.kind} router knows no classes; use a gaussian one"
        )

    def scores_and_logits(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Errors, as `score` gives them, and class logits, if classes are known; on the CPU."""
        logits = self.class_logits(features).cpu() if self.is_class_conditional else None
        return self.score(features).cpu(), logits

    def features(self, states: Sequence[Tensor]) -> Tensor:
        """What experts see of the backbone's states (each (n, tokens, dim)), side by side.

        Of each state either every token's mean over the hidden dimension, or all tokens flattened
        (paper, section 4.1), or the CLS token and the mean of the others, each normalised.
        """
        read = {"mean": _token_means, "flat": _flat, "pooled": _pooled}
        return torch.cat([read[self.settings.tokens or "mean"](s) for s in states], dim=1)

    def add(self, task: int, expert: Expert) -> None:
        """Keep a fitted expert as that of a task."""
        self.experts[task] = expert
        self.changed()

    def remove(self, task: int) -> None:
        """Drop the expert of a task; the others answer as before."""
        del self.experts[task]
        self.changed()

    def restore(self, experts: dict[int, Expert], shared: Expert) -> None:
        """Take over what was stored."""
        self.experts, self.shared = dict(experts), dict(shared)
        self.changed()

    @abstractmethod
    def changed(self) -> None:
        """Drop what was computed from the experts; called whenever they change."""

    @property
    def parameters(self) -> int:
        """Numbers that must be kept for all experts."""
        return sum(tensor.numel() for tensor in self._kept())

    @property
    def bytes(self) -> int:
        """Bytes of these numbers, as they are stored."""
        return sum(tensor.nbytes for tensor in self._kept())

    def _kept(self) -> list[Tensor]:
        return [t for part in (self.shared, *self.experts.values()) for t in part.values()]


class ReconstructionRouter(Router):
    """Experts that reconstruct σ(V), one model a task; all are stacked and scored at once."""

    def __init__(self, settings: RouterSettings):
        super().__init__(settings)
        self._stacked: Expert | None = None

    @abstractmethod
    def fit_expert(
        self, features: Tensor, rows: Tensor, rng: torch.Generator, distributed: Distributed
    ) -> Expert:
        """Fit an expert to some rows of the features (n, dim) of one task; labels do not matter.

        There may be more features than memory: take a few rows at a time. Other processes of the
        `distributed` may have other features: sum over all.
        """

    def fit_both(
        self, features: Tensor, held_out: Tensor, rng: torch.Generator, distributed: Distributed
    ) -> tuple[Expert, Expert]:
        """An expert of what is not held out, and one of everything, alike in all else.

        Args:
            held_out: whether each row is, (n,).
        """
        rows = torch.arange(len(features), device=features.device)
        trial = self.fit_expert(features, rows[~held_out], _copy(rng), distributed)
        return trial, self.fit_expert(features, rows, rng, distributed)

    @abstractmethod
    def errors(self, features: Tensor, experts: Expert) -> Tensor:
        """Errors (n, e) of features (n, dim) under e experts stacked along a new first axis."""

    def features(self, states: Sequence[Tensor]) -> Tensor:
        """σ(V), in (0, 1)."""
        return super().features(states).sigmoid()

    def fit(
        self,
        features: Tensor,
        targets: Tensor,
        rng: torch.Generator,
        distributed: Distributed = SINGLE_PROCESS,
    ) -> Expert:
        """Fit to everything; what is strange is measured on every fifth image, held out once."""
        rows = torch.arange(len(features), device=features.device)
        held_out = (distributed.start(len(features)) + rows) % HELD_OUT == 0
        trial, expert = self.fit_both(features, held_out, rng, distributed)
        alone = {key: value[None] for key, value in trial.items()}
        chunks = rows[held_out].split(chunk_rows(features.shape[1]))
        own = torch.cat([self.errors(features[chunk], alone)[:, 0] for chunk in chunks])
        usual = distributed.all_gather(own).sort().values
        return {**expert, "usual": usual}

    def score(self, features: Tensor) -> Tensor:
        return self.errors(features, self._experts())

    def ood_score(self, features: Tensor) -> Tensor:
        """The least error over tasks, each in units of its own usual error."""
        usual = torch.stack([expert["usual"].median() for expert in self.experts.values()])
        return (self.score(features) / usual).min(1).values

    def novelty(self, features: Tensor) -> Tensor:
        """The largest over tasks: nothing learned finds the image usual."""
        errors = self.score(features)
        p = [
            conformal(errors[:, i].contiguous(), expert["usual"])
            for i, expert in enumerate(self.experts.values())
        ]
        return torch.stack(p).max(0).values

    def changed(self) -> None:
        self._stacked = None

    def _experts(self) -> Expert:
        if self._stacked is None:
            experts = list(self.experts.values())
            self._stacked = {
                key: torch.stack([e[key] for e in experts]) for key in experts[0] if key != "usual"
            }
        return self._stacked


HELD_OUT = 5
"""One image in so many measures what is usual."""


def conformal(scores: Tensor, usual: Tensor) -> Tensor:
    """Share of usual scores that are as high or higher, the image itself counted among them.

    For an image drawn like those behind `usual` (sorted), the p-value is at most α with a
    probability of at most α, whatever the scores are (Vovk et al., 2005).
    """
    lower = torch.searchsorted(usual, scores)
    return (len(usual) - lower + 1).double() / (len(usual) + 1)


def linear_errors(features: Tensor, encoders: Tensor, decoders: Tensor) -> Tensor:
    """Mean squared error of x against G F x for e linear autoencoders: (n, e).

    ‖x − G z‖² = ‖x‖² − 2 (Gᵀx)·z + zᵀ(GᵀG)z with z = F x needs no (n, e, dim) tensor. The terms
    nearly cancel where the reconstruction is good, hence float64.

    Args:
        features: x, (n, dim).
        encoders: F, (e, latent, dim).
        decoders: G, (e, dim, latent).
    """
    x, F, G = features.double(), encoders.double(), decoders.double()
    z = torch.einsum("nd,esd->nes", x, F)
    y = torch.einsum("nd,eds->nes", x, G)
    reconstruction = torch.einsum("nes,est,net->ne", z, G.mT @ G, z)
    squared = x.square().sum(1, keepdim=True) - 2 * (y * z).sum(2) + reconstruction
    return squared / x.shape[1]


def _token_means(state: Tensor) -> Tensor:
    return state.mean(2)


def _flat(state: Tensor) -> Tensor:
    return state.flatten(1)


def _pooled(state: Tensor) -> Tensor:
    both = torch.stack([state[:, 0], state[:, 1:].mean(1)], dim=1)
    return F.layer_norm(both, both.shape[2:]).flatten(1)


def _copy(rng: torch.Generator) -> torch.Generator:
    copy = torch.Generator()
    copy.set_state(rng.get_state())
    return copy
