"""Errors that a user can correct; the command prints their message without a traceback.

Every error derives from `RememberingError`, and in addition from the built-in class that callers
would catch for the same problem. Messages state what is wrong, where, and what to do.
"""


class RememberingError(Exception):
    """Base class of all errors that this library raises on purpose."""


class InvalidInputError(RememberingError, ValueError):
    """An argument, a setting, an array or a label is not acceptable."""


class InvalidFileError(RememberingError, OSError):
    """An image, data set or checkpoint is missing, damaged, or not of an accepted kind."""


class StorageError(RememberingError, OSError):
    """A model folder or a cache cannot be read, written or locked."""


class DownloadError(RememberingError, OSError):
    """The model hub or a package registry cannot be reached, or lacks what was requested."""


def reason(error: BaseException) -> str:
    """Return the message of another library's error on one line, to quote it in ours."""
    return " ".join(str(error).split()) or type(error).__name__
