"""Run the service with uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from remembering.errors import RememberingError
from remembering.model import RememberingTransformer
from remembering.serving.app import create_app
from remembering.serving.batching import freeze_garbage_collection
from remembering.serving.options import ServeOptions
from remembering.serving.served import new_model
from remembering.serving.service import Service

_SHUTDOWN_SECONDS = 10
_HEADER_BYTES = 16 * 1024


class Server(uvicorn.Server):
    """An HTTP server for one service.

    Args:
        service: What to serve; closed when the server stops.
        on_ready: Called once requests are accepted.
    """

    def __init__(self, service: Service, on_ready: Callable[[], None] = lambda: None):
        limits = service.options.limits
        super().__init__(
            uvicorn.Config(
                create_app(service),
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="on",
                ws="none",
                proxy_headers=False,
                limit_concurrency=limits.connections,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
                h11_max_incomplete_event_size=_HEADER_BYTES,
            )
        )
        self._service, self._on_ready = service, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept requests."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End event streams, answer what was accepted, and stop."""
        self._service.stopping = True
        await super().shutdown(sockets)


def serve(
    options: ServeOptions,
    on_ready: Callable[[str], None] = lambda url: None,
    create: Callable[[], RememberingTransformer] = new_model,
    backbone: str | None = None,
) -> None:
    """Serve a model until the process is told to stop (SIGINT or SIGTERM).

    Args:
        options: What to serve, and where.
        on_ready: Called with the URL once requests are accepted.
        create: Returns a model that has learned nothing, if the folder holds none.
        backbone: Where the backbone of the model is now, if it was moved.

    Raises:
        RememberingError: If the model cannot be loaded, or the address is not available.
    """
    with bind(options.host, options.port) as bound:
        service = Service(options, create, backbone)
        freeze_garbage_collection()
        Server(service, lambda: on_ready(url_of(bound))).run(sockets=[bound])


def url_of(bound: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Raises:
        RememberingError: If the address is not available.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        return bound
    except OSError as error:
        raise RememberingError(
            f"{host}:{port} cannot be used ({error.strerror}); choose another --port"
        ) from error
