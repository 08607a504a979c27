"""Routers: generative models of tasks that decide which adapter answers an input.

A router is an immutable value with one expert (a dictionary of tensors) per task. The contract is
in `base`; each kind of router has a file of its own and one line in `ROUTERS`. What a router reads
of the backbone is in `features`; how scores become p-values is in `calibration`. Running the
backbone and combining router and adapter belong to `inference`.
"""

from remembering.config import RouterSettings
from remembering.routing.autoencoder import AutoencoderRouter
from remembering.routing.base import Expert, Router
from remembering.routing.gaussian import GaussianRouter
from remembering.routing.subspace import SubspaceRouter

ROUTERS: dict[str, type[Router]] = {
    "gaussian": GaussianRouter,
    "autoencoder": AutoencoderRouter,
    "subspace": SubspaceRouter,
}


def make_router(settings: RouterSettings) -> Router:
    """Return a router of the kind that the settings name, without experts."""
    return ROUTERS[settings.kind](settings)


__all__ = ["ROUTERS", "Expert", "Router", "make_router"]
