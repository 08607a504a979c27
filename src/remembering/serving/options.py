"""Options of the service, and limits that bound what a request can cost."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from remembering.errors import RememberingError

MIN_TOKEN_LENGTH = 16


@dataclass(frozen=True)
class Limits:
    """Upper bounds on requests, queues and jobs.

    Attributes:
        body_bytes: Size of a request body.
        body_seconds: Seconds without data from the client before a request is aborted.
        image_bytes: Size of one encoded image.
        image_pixels: Pixels of one image.
        request_pixels: Pixels of all images of a prediction.
        images: Images of a prediction.
        task_pixels: Pixels of all images of a request to learn, add or observe.
        task_images: Images of a task, and observed images that wait to be learned.
        classes: Classes of a task.
        text_length: Characters of a label or name.
        queued_images: Images that wait for a prediction.
        queued_pixels: Pixels of the images that wait for a prediction.
        batch_images: Images that are predicted together.
        batch_seconds: Longest time that a prediction waits for others.
        jobs: Jobs that wait or run.
        finished_jobs: Finished jobs that are remembered.
        event_streams: Open event streams.
        connections: Open connections.
    """

    body_bytes: int = 64 * 1024**2
    body_seconds: float = 30.0
    image_bytes: int = 16 * 1024**2
    image_pixels: int = 50_000_000
    request_pixels: int = 100_000_000
    images: int = 64
    task_pixels: int = 1_000_000_000
    task_images: int = 5_000
    classes: int = 500
    text_length: int = 200
    queued_images: int = 512
    queued_pixels: int = 200_000_000
    batch_images: int = 64
    batch_seconds: float = 0.02
    jobs: int = 8
    finished_jobs: int = 100
    event_streams: int = 32
    connections: int = 512


@dataclass(frozen=True)
class ServeOptions:
    """What to serve, where, and for whom.

    Attributes:
        folder: Folder of the model; created when the first task is learned.
        host: Address to bind.
        port: Port to bind; 0 chooses a free one.
        token: Token that clients must send. Required unless `host` is a loopback address.
        allowed_hosts: Additional host names that clients may use for a loopback address.
        read_only: Whether only predictions are served.
        poll_seconds: How often to look for a state that another process saved.
        limits: Upper bounds.
    """

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    read_only: bool = False
    poll_seconds: float = 1.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise RememberingError(f"port {self.port} is not between 0 and 65535")
        if not 0 < self.poll_seconds < 86_400:
            raise RememberingError(
                f"poll_seconds = {self.poll_seconds} must be above 0 and below a day (86,400)"
            )
        if self.token is not None and (
            len(self.token) < MIN_TOKEN_LENGTH
            or not self.token.isascii()
            or not self.token.isprintable()
            or " " in self.token
        ):
            raise RememberingError(
                f"the token must have at least {MIN_TOKEN_LENGTH} ASCII characters without spaces; "
                "create one with: python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        if self.token is None and not self.is_loopback:
            raise RememberingError(
                f"{self.host} can be reached from other machines, which requires a token; set "
                "REMEMBERING_TOKEN or use --token-file, or bind to 127.0.0.1"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
