"""Read Parquet files in the layout of the hub: train-00000-of-00001.parquet, test-..."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from remembering.data.folders import TEST_PARTS
from remembering.data.parquet_file import read_parquet
from remembering.data.sources.base import Splits
from remembering.data.sources.stacking import decode_dataset
from remembering.data.task import Label
from remembering.errors import InvalidFileError, reason
from remembering.runtime.reading import require_regular

if TYPE_CHECKING:
    import datasets


def check_arrow(dataset: datasets.Dataset) -> None:
    """Check that the columns of a dataset lie within its files, and that strings are UTF-8.

    Arrow follows the offsets in a file without a check: those of a damaged or hostile file would
    read memory beyond it, or end the process.

    Raises:
        pyarrow.ArrowInvalid: If not.
    """
    dataset.data.validate(full=True)


def parquet_files(folder: Path) -> dict[str, list[Path]]:
    """List the Parquet files of each split in order, without splits that have none.

    Raises:
        InvalidFileError: If one is not a regular file, or its name is a pattern or an address to
            the libraries that read it.
    """
    found = {part: sorted(folder.glob(f"{part}-*.parquet")) for part in ("train", *TEST_PARTS)}
    for path in (path for files in found.values() for path in files):
        require_regular(path)
        if not re.fullmatch(r"[\w.=-]+", path.name):
            raise InvalidFileError(
                f"the name of {path} has special characters; use letters, digits and '-' only"
            )
    return {part: files for part, files in found.items() if files}


def read_parquet_folder(folder: Path, classes: tuple[Label, ...]) -> Splits | None:
    """Read and decode a published data set of small images.

    Returns:
        None if there are no such files.
    """
    files = parquet_files(folder)
    if "train" not in files:
        return None
    if "test" not in files:
        raise InvalidFileError(f"{folder} has train-*.parquet but no test-*.parquet; add it")
    import datasets
    import pyarrow as pa  # type: ignore[import-untyped]

    parts = []
    for part in ("train", "test"):
        try:
            dataset = datasets.Dataset(pa.concat_tables(map(read_parquet, files[part])))
            check_arrow(dataset)
        except Exception as error:  # pyarrow and datasets each have their own exceptions
            raise InvalidFileError(
                f"the {part} files in {folder} are damaged ({reason(error)}); download them again"
            ) from error
        parts.append(decode_dataset(dataset, classes, f"{folder} ({part})"))
    return Splits(*parts)
