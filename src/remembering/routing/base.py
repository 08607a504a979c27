"""The contract of every router.

A router has one small generative model, an *expert*, per task. An expert is a dictionary of
tensors, so that experts of every kind are stored and moved in the same way; `shared` holds what
all experts have in common. Routers are immutable: adding, removing or refining an expert returns a
new router. Scores are lower for more familiar inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from remembering.config import ClassifierSettings, RouterSettings
from remembering.errors import RememberingError
from remembering.routing.features import extract_features
from remembering.runtime.distributed import SINGLE_PROCESS, Distributed

Expert = Mapping[str, Tensor]
Layout = Mapping[str, tuple[torch.dtype, tuple[int | None, ...]]]
"""Type and shape of each tensor of an expert; None stands for any length from 1 on."""


def check_layout(tensors: Expert, layout: Layout) -> None:
    """Raise ValueError unless the tensors have these names, types and shapes."""
    if set(tensors) != set(layout):
        raise ValueError(f"it has {', '.join(sorted(tensors))} instead of {', '.join(layout)}")
    for name, (dtype, shape) in layout.items():
        tensor = tensors[name]
        fits = len(shape) == tensor.ndim and all(
            size == expected if expected is not None else size > 0
            for size, expected in zip(tensor.shape, shape, strict=True)
        )
        if tensor.dtype != dtype or not fits:
            raise ValueError(f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}")


class Router(ABC):
    """Scores inputs against the experts of all tasks in one batched operation.

    To add a router, subclass `Router` or `ReconstructionRouter`, implement the abstract methods and
    add the class to `remembering.routing.ROUTERS`; `tests/routing/test_routers.py` then covers it.

    Args:
        settings: Resolved settings.
        experts: Experts by task number, in the order in which the tasks were learned.
        shared: Tensors that all experts have in common.
    """

    is_class_conditional: ClassVar[bool] = False
    """Whether experts model the classes of their task, so that `class_logits` is available."""
    score_name: ClassVar[str]
    """What `scores` returns, for tables and plots."""

    def __init__(
        self,
        settings: RouterSettings | ClassifierSettings,
        experts: Mapping[int, Expert] = MappingProxyType({}),
        shared: Expert = MappingProxyType({}),
    ):
        self.settings = settings
        self.experts: Mapping[int, Expert] = MappingProxyType(dict(experts))
        self.shared: Expert = MappingProxyType(dict(shared))

    @abstractmethod
    def fit(
        self,
        features: Tensor,
        targets: Tensor,
        rng: torch.Generator,
        distributed: Distributed = SINGLE_PROCESS,
    ) -> Expert:
        """Fit an expert to one task.

        Args:
            features: (n, dim), of this process's share of the task.
            targets: Class indices of the whole task, (total,).
            rng: Source of random numbers.
            distributed: The processes that fit together.

        Returns:
            The expert; pass it to `with_expert`.
        """

    @abstractmethod
    def layout(self, dim: int, classes: int) -> Layout:
        """Return the layout of an expert on `dim` features for a task of `classes` classes."""

    def check(self, task: int, dim: int, classes: int) -> None:
        """Raise ValueError unless the expert of a task, read from a file, can be used."""
        check_layout(self.experts[task], self.layout(dim, classes))

    def check_shared(self, dim: int, classes: int) -> None:
        """Raise ValueError unless the shared tensors fit experts with so many classes in total."""
        check_layout(self.shared, {})

    @abstractmethod
    def scores(self, features: Tensor) -> Tensor:
        """Return scores (n, tasks) under the experts of all tasks; the lowest is most familiar."""

    @abstractmethod
    def ood_scores(self, features: Tensor) -> Tensor:
        """Return out-of-distribution scores (n,); the higher, the more novel."""

    @abstractmethod
    def novelty(self, features: Tensor) -> Tensor:
        """Return p-values (n,) of the hypothesis that an input belongs to a learned task."""

    @abstractmethod
    def encode(self, features: Tensor, expert: Expert) -> Tensor:
        """Return latent representations (n, latent) under one expert, for herding."""

    def check_refinable(self) -> None:
        """Raise if experts cannot be refined."""
        raise RememberingError(
            f"the experts of the {self.settings.kind} router cannot be refined; use "
            'router.kind = "gaussian"'
        )

    def class_logits(self, features: Tensor) -> Tensor:
        """Return log-likelihoods (n, classes of all tasks) up to a constant, task after task."""
        raise RememberingError(
            f'the {self.settings.kind} router does not model classes; use router.kind = "gaussian"'
        )

    def features(self, states: Sequence[Tensor]) -> Tensor:
        """Return what experts read (n, features) of the backbone's states at `settings.layers`."""
        return extract_features(states, self.settings.tokens or "mean")

    def with_expert(self, task: int, expert: Expert) -> Self:
        """Return a router that also has the expert of a new task."""
        return type(self)(self.settings, {**self.experts, task: expert}, self.shared)

    def without_expert(self, task: int, share: Expert | None = None) -> Self:
        """Return a router that lacks the expert of a task.

        Args:
            task: Number of the task.
            share: What the task added to the shared tensors, where experts have some in common.
        """
        rest = {number: expert for number, expert in self.experts.items() if number != task}
        return type(self)(self.settings, rest, self.shared if rest else {})

    def renumbered(self, offset: int) -> Self:
        """Return this router with an offset added to the numbers of its tasks."""
        experts = {number + offset: expert for number, expert in self.experts.items()}
        return type(self)(self.settings, experts, self.shared)

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        """Pickle and copy what cannot be derived."""
        experts = {number: dict(expert) for number, expert in self.experts.items()}
        return type(self), (self.settings, experts, dict(self.shared))

    def to(self, device: torch.device) -> Self:
        """Return this router on another device."""

        def moved(expert: Expert) -> Expert:
            return {key: value.to(device) for key, value in expert.items()}

        experts = {number: moved(expert) for number, expert in self.experts.items()}
        return type(self)(self.settings, experts, moved(self.shared))

    @property
    def parameters(self) -> int:
        """Number of stored values."""
        return sum(tensor.numel() for tensor in self._tensors())

    @property
    def nbytes(self) -> int:
        """Bytes of the stored values."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def _tensors(self) -> list[Tensor]:
        return [t for part in (self.shared, *self.experts.values()) for t in part.values()]
