"""Published pickles are read, and nothing in a hostile one is executed."""

import os
import pickle
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from remembering.data.sources.safe_pickle import read_pickle
from remembering.errors import RememberingError


def write(folder: Path, content: bytes) -> Path:
    path = folder / "batch"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_lists_and_strings_come_back(tmp_path: Path, protocol: int, order: str) -> None:
    data = np.asarray(np.arange(200, 206).reshape(2, 3), np.uint8, order=order)
    content = {b"data": data, "labels": [3, 1], b"batch_label": b"testing batch 1 of 1"}
    read = read_pickle(write(tmp_path, pickle.dumps(content, protocol)))
    np.testing.assert_array_equal(read["data"], data)
    assert read["labels"] == [3, 1]
    assert read["batch_label"] == b"testing batch 1 of 1"


def test_strings_of_python_2_are_read(tmp_path: Path) -> None:
    # {"data": array([[1, 2, 3], [4, 5, 6]], uint8)}, as Python 2 wrote the published files.
    values = bytes(range(1, 7))
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02K\x03"
        b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T" + struct.pack("<i", len(values)) + values + b"tb"
    )
    read = read_pickle(write(tmp_path, b"\x80\x02}(U\x04data" + array + b"u."))
    np.testing.assert_array_equal(read["data"], [[1, 2, 3], [4, 5, 6]])


class Payload:
    def __init__(self, function: object, *arguments: object):
        self.reduced = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.reduced


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.system, eval, getattr, np.load, np.ndarray])
def test_a_function_call_is_refused_and_not_run(
    tmp_path: Path, protocol: int, function: object
) -> None:
    mark = tmp_path / "was-run"
    content = {"data": Payload(function, f"touch {mark}")}
    with pytest.raises(RememberingError, match="can be read safely") as raised:
        read_pickle(write(tmp_path, pickle.dumps(content, protocol)))
    assert re.search(r"it (calls|creates an array)", str(raised.value))
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    {
        "not a dictionary": pickle.dumps([1]),
        "an array of objects": pickle.dumps({"data": np.array([None], object)}),
        "an array of numbers": pickle.dumps({"data": np.zeros(3)}),
        "a truncated file": pickle.dumps({"data": np.zeros(99, np.uint8)})[:-50],
        "an empty file": b"",
        "not a pickle": b"\x89PNG\r\n",
        "fewer values than the shape": pickle.dumps({"data": np.zeros(9, np.uint8)}, 2).replace(
            b"K\t\x85", b"K\x0a\x85"
        ),
        "a changed function": b"\x80\x02}(U\x04datacnumpy\ndtype\n(U\x01aK\x01dbu.",
        "a persistent object": b"\x80\x02}(U\x04dataU\x01aQu.",
        "an instance": b"(S'data'\n(ios\nsystem\nd.",
    }.items(),
    ids=lambda item: item[0],
)
def test_anything_else_is_refused(tmp_path: Path, content: tuple[str, bytes]) -> None:
    with pytest.raises(RememberingError, match=r"batch is not a data file .* download"):
        read_pickle(write(tmp_path, content[1]))
