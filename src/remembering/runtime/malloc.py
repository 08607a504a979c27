"""Return freed memory to the operating system."""

from __future__ import annotations

import ctypes
import sys


def trim_malloc() -> None:
    """Make glibc return its free pages.

    Each task needs matrices of about ten megabytes temporarily, and keeps a few hundred kilobytes
    that are allocated between them. The resulting holes are rarely reused: without this, a router
    on 1,920 features grew by 29 MB with each of 80 tasks, of which it used 0.2.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries lack it
    if trim is not None:
        trim(0)
