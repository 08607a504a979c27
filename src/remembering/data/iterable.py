"""A dataset that streams, written to disk once: training wants any image at any time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from remembering.errors import RememberingError
from remembering.runtime.files import cache_dir

if TYPE_CHECKING:
    import datasets


def on_disk(stream: datasets.IterableDataset, columns: list[str], name: str) -> datasets.Dataset:
    """These columns of a streaming dataset, as a memory-mapped one; image files stay as they came.

    The file lies in `$REMEMBERING_CACHE` or `~/.cache/remembering`. It has lost its name when this
    returns, and goes with the dataset. A stream that has no end must be cut: `stream.take(n)`.

    Args:
        columns: those to be kept; all if there are none.
        name: of the task, for errors.
    """
    import datasets

    stream = stream.select_columns(columns) if columns else stream
    images = [n for n, f in (stream.features or {}).items() if isinstance(f, datasets.Image)]
    encoded = stream
    for column in images:
        encoded = encoded.cast_column(column, datasets.Image(decode=False))

    def rows() -> Iterator[dict[str, Any]]:
        for row in encoded:
            yield row | {column: _at_hand(row[column]) for column in images}

    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".stream-") as temporary:
            return datasets.Dataset.from_generator(
                rows, features=stream.features, cache_dir=temporary
            )
    # Whatever the stream reads from (the hub, files, the user's own code) raises its own kinds.
    except Exception as error:
        cause = error.__cause__ or error
        raise RememberingError(
            f"the streaming dataset of task '{name}' could not be written to {folder} "
            f"({type(cause).__name__}: {' '.join(str(cause).split())}); nothing was learned"
        ) from error


def _at_hand(image: dict[str, Any]) -> Any:
    """The bytes of an image file; one that is known by its address only is fetched."""
    import datasets

    return datasets.Image().decode_example(image) if image["bytes"] is None else image
