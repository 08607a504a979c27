"""Parquet files in the layout of the hub: train-00000-of-00001.parquet, test-..."""

from __future__ import annotations

from pathlib import Path

from remembering.data.sources.base import TEST_PARTS, Splits, reason
from remembering.data.sources.decode import decode_dataset
from remembering.data.task import Label
from remembering.errors import RememberingError


def parquet_files(folder: Path) -> dict[str, list[Path]]:
    """The files of each part, in order; parts that are absent are left out."""
    found = {part: sorted(folder.glob(f"{part}-*.parquet")) for part in ("train", *TEST_PARTS)}
    return {part: files for part, files in found.items() if files}


def read_parquet_folder(folder: Path, classes: tuple[Label, ...]) -> Splits | None:
    """A published data set of small images, decoded; None if there are no such files."""
    files = parquet_files(folder)
    if "train" not in files:
        return None
    if "test" not in files:
        raise RememberingError(f"{folder} holds train-*.parquet but no test-*.parquet; add it")
    import datasets
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    parts = []
    for part in ("train", "test"):
        try:
            table = pa.concat_tables([pq.read_table(path) for path in files[part]])
        except (OSError, pa.ArrowException) as error:
            raise RememberingError(
                f"the {part} files in {folder} are damaged ({reason(error)}); get them again"
            ) from error
        where = f"{folder} ({part})"
        parts.append(decode_dataset(datasets.Dataset(table), classes, where))
    return Splits(*parts)
