"""Errors can be caught as `RememberingError` and as the built-in class for the same problem."""

from __future__ import annotations

import pickle

import pytest

from remembering.errors import (
    DownloadError,
    InvalidFileError,
    InvalidInputError,
    RememberingError,
    StorageError,
)


@pytest.mark.parametrize(
    ("kind", "built_in"),
    [
        (InvalidInputError, ValueError),
        (InvalidFileError, OSError),
        (StorageError, OSError),
        (DownloadError, OSError),
    ],
)
def test_errors_keep_their_message(kind: type[RememberingError], built_in: type[Exception]) -> None:
    for error in (kind("x.png is damaged"), pickle.loads(pickle.dumps(kind("x.png is damaged")))):
        assert isinstance(error, RememberingError)
        assert isinstance(error, built_in)
        assert str(error) == "x.png is damaged"
