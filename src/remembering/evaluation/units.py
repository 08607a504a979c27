"""Routing units: how many images of one source are routed together.

- `sample`: each image alone. The only unit called class-incremental accuracy.
- `group_n`: n images of one source, such as a folder, a burst or a camera.
- `task`: the whole test set of a task, the paper's published protocol.
"""

from __future__ import annotations

import math
import re

from remembering.errors import RememberingError


def unit_size(unit: str) -> float:
    """Return the number of images that are routed together; orders the units.

    Raises:
        RememberingError: If there is no such unit.

    >>> unit_size("sample"), unit_size("group_32"), unit_size("task")
    (1, 32, inf)
    """
    if unit in ("sample", "task"):
        return 1 if unit == "sample" else math.inf
    size = re.fullmatch(r"group_([1-9][0-9]*)", unit)
    if size is None:
        raise RememberingError(f"routing unit '{unit}' is unknown; use sample, group_32 or task")
    return int(size[1])


def groups(unit: str, count: int) -> list[int]:
    """Return the group of each of the `count` test images of a task.

    >>> groups("group_2", 5)
    [0, 0, 1, 1, 2]
    """
    size = min(unit_size(unit), max(count, 1))
    return [int(i // size) for i in range(count)]
