"""Routers in an exported graph."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remembering.errors import RememberingError
from remembering.export.gaussians import GaussianTables
from remembering.export.p_values import PValues
from remembering.routing.base import Router
from remembering.routing.gaussian import GaussianRouter
from remembering.routing.reconstruction import CALIBRATION, ReconstructionRouter


class RouterGraph(nn.Module):
    """Scores of all tasks, and p-values, as a router computes them.

    Attributes:
        router: Defines the features.
        calibration: Turns scores into p-values.
    """

    router: Router
    calibration: PValues

    @abstractmethod
    def scores(self, features: Tensor) -> Tensor:
        """Return scores (n, tasks), up to a constant for each image."""

    @abstractmethod
    def p_values(self, features: Tensor) -> Tensor:
        """Return p-values (n,)."""


class ReconstructionGraph(RouterGraph):
    """The autoencoders of the paper, or their closed form."""

    router: ReconstructionRouter

    def __init__(self, router: ReconstructionRouter):
        super().__init__()
        self.router, experts = router, list(router.experts.values())
        self.calibration = PValues([expert[CALIBRATION] for expert in experts])
        self.names = [name for name in experts[0] if name != CALIBRATION]
        for name in self.names:
            self.register_buffer(name, torch.stack([expert[name] for expert in experts]))

    def scores(self, features: Tensor) -> Tensor:
        experts = {name: self.get_buffer(name) for name in self.names}
        return self.router.reconstruction_errors(features, experts)

    def p_values(self, features: Tensor) -> Tensor:
        p_values: Tensor = self.calibration(self.scores(features))
        return p_values.amax(1)


class GaussianRouterGraph(RouterGraph):
    """Class Gaussians on the first layers."""

    columns: Tensor

    def __init__(self, router: GaussianRouter):
        super().__init__()
        self.router, owner = router, router.gaussians.owner
        self.tables = GaussianTables([router.gaussians], [torch.arange(len(owner))])
        self.calibration = self.tables.calibration
        # The columns of each task, filled up with one that is −∞.
        rows = [(owner == task).nonzero().flatten() for task in range(len(router.experts))]
        columns = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=len(owner))
        self.register_buffer("columns", columns)

    def scores(self, features: Tensor) -> Tensor:
        logits = self.tables.logits(features, self.tables.likelihoods(features))
        return -F.pad(logits, (0, 1), value=-torch.inf)[:, self.columns].logsumexp(2)

    def p_values(self, features: Tensor) -> Tensor:
        first = torch.zeros_like(features[:, 0], dtype=torch.long)
        return self.tables.p_values(features, self.tables.likelihoods(features), first)


def router_graph(router: Router) -> RouterGraph:
    """Return the graph of a router.

    Raises:
        RememberingError: If routers of this kind cannot be exported.
    """
    if isinstance(router, GaussianRouter):
        return GaussianRouterGraph(router)
    if isinstance(router, ReconstructionRouter):
        return ReconstructionGraph(router)
    raise RememberingError(
        f"a model with the {router.settings.kind} router cannot be exported; add this router to "
        "remembering.export.routers"
    )
