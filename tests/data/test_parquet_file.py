"""Parquet files whose description asks for more memory than there is."""

from __future__ import annotations

import shutil
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from remembering.data.parquet_file import read_parquet
from remembering.data.paths import load_tasks
from remembering.data.sources.base import Source
from remembering.data.sources.parquet import read_parquet_folder
from remembering.errors import InvalidFileError

pytestmark = pytest.mark.unit
HOSTILE = Path(__file__).with_name("too_many_rows.parquet")
"""Found by fuzzing: 2 kB; a part claims 110,428,616,316 rows, and pyarrow allocates 256 GiB."""


def test_more_rows_than_a_file_can_hold_are_refused(tmp_path: Path) -> None:
    table = shutil.copy(HOSTILE, tmp_path / "table.parquet")
    with pytest.raises(InvalidFileError, match=r"not a Parquet file .*rows of its parts"):
        load_tasks(table)
    for part in ("train", "test"):
        shutil.copy(HOSTILE, tmp_path / f"{part}-0.parquet")
    with pytest.raises(InvalidFileError, match=r"damaged .*rows of its parts"):
        read_parquet_folder(tmp_path, ("cat", "dog"))


def test_files_of_many_rows_and_parts_are_read(tmp_path: Path) -> None:
    table = pa.table({"path": [f"{i}.png" for i in range(5000)], "label": [7] * 5000})
    pq.write_table(table, tmp_path / "many.parquet", row_group_size=300, compression="zstd")
    assert read_parquet(tmp_path / "many.parquet").equals(table)


def test_a_split_without_rows_is_named(tmp_path: Path) -> None:
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    empty = datasets.Dataset.from_dict({"image": [], "label": []}, features=features)
    for part in ("train", "test"):
        empty.to_parquet(tmp_path / f"{part}-0.parquet")
    splits = read_parquet_folder(tmp_path, ("cat", "dog"))
    assert splits is not None
    with pytest.raises(InvalidFileError, match="train split of 'pets' has no image of class 'cat'"):
        Source("pets", splits.train, splits.test, ("cat", "dog"))
