"""Who knows this input: one registry of routers."""

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
    """A router of the kind that the settings name, without experts."""
    return ROUTERS[settings.kind](settings)


__all__ = ["ROUTERS", "Expert", "Router", "make_router"]
