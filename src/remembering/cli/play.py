"""`remember play`: teach a model in the browser."""

from __future__ import annotations

import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path

import tyro

from remembering.cli.parsing import Flag, parse
from remembering.cli.serve import require_extra, run
from remembering.errors import RememberingError
from remembering.runtime.text import printable


@dataclass(frozen=True)
class Play:
    """Teach a model and ask it in the browser, on this machine.

    Attributes:
        model: Folder of the model. It is created when the first task is learned.
        port: Port to use. If None, 8000, or a free one if it is taken.
        no_browser: Do not open a browser.
        backbone: For a new model: bundled (the default, for drawings and small grey images), a
            folder in hub layout, or a hub name such as facebook/dinov2-small for photos. For an
            existing model: where its backbone is now, if it was moved.
        capacity: For a new model: largest number of adapters. If None, there is no limit.
    """

    model: tyro.conf.Positional[Path] = Path("my-model")
    port: int | None = None
    no_browser: Flag = False
    backbone: str | None = None
    capacity: int | None = None


def main(arguments: list[str]) -> int:
    """Run `remember play` and return its exit code."""
    options = parse(Play, arguments, "play")
    require_extra()

    from remembering.serving.options import ServeOptions

    def on_ready(url: str) -> None:
        print(f"{printable(options.model)} is at {url} (Ctrl-C stops)", flush=True)
        if not options.no_browser:
            # Some browsers start slowly, or keep the caller waiting.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    port = _port() if options.port is None else options.port
    overrides = {"capacity": options.capacity}
    run(ServeOptions(options.model, port=port), options.backbone, overrides, on_ready)
    return 0


def _port(preferred: int = 8000) -> int:
    from remembering.serving.server import bind

    try:
        bind("127.0.0.1", preferred).close()
    except RememberingError:
        return 0
    return preferred
