"""Read a Parquet file whose own description may be wrong.

pyarrow allocates what the description asks for: a file of 2 kB can ask for 256 GiB.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROWS_PER_BYTE = 8
"""Upper bound on rows for each byte of a file: a row names or contains an image."""


def read_parquet(path: Path) -> Any:
    """Return the `pyarrow.Table` in a regular file.

    Raises:
        ValueError: If the numbers of rows contradict each other or the size of the file; pyarrow
            raises further exceptions of its own.
    """
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    file, size = pq.ParquetFile(path), path.stat().st_size
    # Not the metadata of columns: where they are damaged, pyarrow 26 ends the process.
    metadata = file.metadata
    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    if sum(rows) != metadata.num_rows or min(rows, default=0) < 0:
        raise ValueError("the rows of its parts are not those of the whole")
    if metadata.num_rows > ROWS_PER_BYTE * size:
        raise ValueError(f"it claims {metadata.num_rows} rows, more than it can hold")
    return file.read()
