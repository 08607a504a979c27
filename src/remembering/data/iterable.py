"""Write streaming datasets to disk: training accesses images in random order."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from remembering.data.decoding import image_bytes
from remembering.errors import RememberingError, StorageError, reason
from remembering.runtime.files import cache_dir

if TYPE_CHECKING:
    import datasets


def on_disk(stream: datasets.IterableDataset, columns: list[str], name: str) -> datasets.Dataset:
    """Write a streaming dataset to a memory-mapped file; encoded images are kept as they are.

    The file is created in `$REMEMBERING_CACHE` or `~/.cache/remembering` and unlinked before this
    function returns, so its space is freed together with the dataset. Limit an infinite stream
    with `stream.take(n)` first.

    Args:
        stream: The streaming dataset.
        columns: Columns to keep. If empty, all are kept.
        name: Name of the task for error messages.

    Raises:
        StorageError: If the stream fails, or the file cannot be written.
    """
    import datasets

    stream = stream.select_columns(columns) if columns else stream
    images = [n for n, f in (stream.features or {}).items() if isinstance(f, datasets.Image)]
    encoded = stream
    for column in images:
        encoded = encoded.cast_column(column, datasets.Image(decode=False))

    def rows() -> Iterator[dict[str, Any]]:
        for position, row in enumerate(encoded):
            yield row | {
                column: _with_bytes(row[column], f"row {position} of column '{column}'")
                for column in images
            }

    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".stream-") as temporary:
            return datasets.Dataset.from_generator(
                rows, features=stream.features, cache_dir=temporary
            )
    # Whatever the stream reads from (the hub, files, the user's own code) has its own exceptions.
    except Exception as error:
        cause = error.__cause__ or error
        kind = "" if isinstance(cause, RememberingError) else f"{type(cause).__name__}: "
        raise StorageError(
            f"the streaming dataset of task '{name}' could not be written to {folder} "
            f"({kind}{reason(cause)}); nothing was learned"
        ) from error


def _with_bytes(entry: Any, where: str) -> dict[str, Any]:
    """Replace the path of a local image file by its content."""
    if isinstance(entry, dict) and entry.get("bytes") is not None:
        return entry
    return {"bytes": image_bytes(entry, where, follow_paths=True), "path": None}
