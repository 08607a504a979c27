"""`remember serve`: an HTTP service that predicts while it learns."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from remembering.cli.parsing import Flag, parse
from remembering.errors import RememberingError
from remembering.runtime.text import printable

if TYPE_CHECKING:
    from remembering.model import RememberingTransformer
    from remembering.serving.options import ServeOptions

TOKEN_VARIABLE = "REMEMBERING_TOKEN"
_BASIC = ("host", "port", "token_file", "read_only", "backbone", "capacity")


@dataclass(frozen=True)
class Serve:
    """Serve a model over HTTP, with a browser UI: predict, teach, forget.

    Only this machine can connect unless --host is given, which requires a token.

    Attributes:
        model: Folder of the model. It is created when the first task is learned.
        host: Address to bind, such as 0.0.0.0 for all.
        port: Port to bind; 0 chooses a free one.
        token: Token that clients must send. Other users of this machine can see it; prefer
            --token-file or the environment variable REMEMBERING_TOKEN.
        token_file: File that contains the token.
        allow_host: Additional host names that clients may use for a loopback address.
        read_only: Only predict; another server writes the model.
        poll_seconds: How often to look for a state that another process saved.
        max_body_mb: Largest request body.
        backbone: For a new model: bundled (the default, for drawings and small grey images), a
            folder in hub layout, or a hub name such as facebook/dinov2-small for photos. For an
            existing model: where its backbone is now, if it was moved.
        epochs: For a new model: passes over the images of a task.
        capacity: For a new model: largest number of adapters. If None, there is no limit.
    """

    model: tyro.conf.Positional[Path]
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    token_file: Path | None = None
    allow_host: tuple[str, ...] = ()
    read_only: Flag = False
    poll_seconds: float = 1.0
    max_body_mb: int = 64
    backbone: str | None = None
    epochs: int | None = None
    capacity: int | None = None


def main(arguments: list[str]) -> int:
    """Run `remember serve` and return its exit code."""
    options = parse(Serve, arguments, "serve", basic=_BASIC)
    require_extra()

    from remembering.serving.options import Limits, ServeOptions

    if options.max_body_mb < 1:
        raise RememberingError(f"--max-body-mb {options.max_body_mb} must be at least 1")
    token = read_token(options.token, options.token_file)
    run(
        ServeOptions(
            options.model,
            options.host,
            options.port,
            token,
            options.allow_host,
            options.read_only,
            options.poll_seconds,
            Limits(body_bytes=options.max_body_mb * 1024**2),
        ),
        options.backbone,
        {"epochs": options.epochs, "capacity": options.capacity},
        lambda url: print(f"serving {printable(options.model)} at {url}", flush=True),
    )
    return 0


def run(
    options: ServeOptions,
    backbone: str | None,
    overrides: dict[str, int | None],
    on_ready: Callable[[str], None],
) -> None:
    """Serve until interrupted; create the model if the folder holds none."""
    from remembering.backbones.backbone import BUNDLED
    from remembering.model import RememberingTransformer
    from remembering.serving.server import serve
    from remembering.storage.layout import in_use
    from remembering.storage.manifest import is_model

    _require_folder(options.folder)
    settings: dict[str, Any] = {
        name: value for name, value in overrides.items() if value is not None
    }
    exists = is_model(options.folder)
    if exists and settings:
        raise RememberingError(
            f"{options.folder} is an existing model and keeps its settings; omit "
            f"--{next(iter(settings))}"
        )
    if not exists and in_use(options.folder):
        raise RememberingError(
            f"{options.folder} is not empty and contains no model; choose another folder"
        )

    def create() -> RememberingTransformer:
        # No images exist yet that a backbone could be selected by.
        if backbone is None:
            logging.getLogger("remembering").info(
                "the new model uses the bundled backbone, for drawings and small grey images; for "
                "photos, name one with --backbone, such as facebook/dinov2-small"
            )
        return RememberingTransformer.from_backbone(backbone or BUNDLED, **settings)

    serve(options, on_ready, create, backbone if exists else None)


def _require_folder(folder: Path) -> None:
    """Raise if the folder of a model, or one that contains it, is a file or a loop of links."""
    try:
        folder.resolve()
    except RuntimeError as error:
        raise RememberingError(
            f"{folder} is a link to itself; give a folder for the model"
        ) from error
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise RememberingError(f"{existing} is a file; give a folder for the model")


def read_token(token: str | None, file: Path | None) -> str | None:
    """Return the token from the option, the file or the environment, in this order."""
    if token is None and file is not None:
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RememberingError(f"the token file {file} cannot be read: {error}") from error
    return token or os.environ.get(TOKEN_VARIABLE) or None


def require_extra() -> None:
    """Raise if the packages of the service are not installed."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise RememberingError(
            "the service is not installed; install it with: pip install 'remembering[serve]'"
        ) from error
